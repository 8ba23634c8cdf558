"""`/v1/completions` and `/v1/chat/completions`."""

from __future__ import annotations

import logging
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web

from moontide.kvstore.service import Call, HttpError, ServerEvent, send_events

from .cluster.models import Model, ModelKey
from .cluster.view import ClusterView
from .errors import BadRequest, Overloaded, WorkerFailed, openai_error
from .generation import Generation, from_chat, from_completion
from .metrics import Metrics
from .protocol import ChatRequest, CompletionRequest
from .relay import Answer, Delivery, Job, Relay
from .replies import (
    ChatReplies,
    CompletionReplies,
    Gathered,
    Replies,
    Shape,
    gather,
    now_seconds,
)
from .tokenising import Tokenised, TokeniserPool

logger = logging.getLogger(__name__)
MAX_REQUEST_ID_CHARS = 128
SEED_BITS = 63
WORKER_HEADER = "X-Moontide-Worker"
"""In a request: the one worker that may answer it. In an answer: the one that did."""
KEEP_ALIVE_SECONDS = 15.0
WRITE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prompt, tokenised for the model that is to answer it."""

    key: ModelKey
    model: Model
    prompt: Tokenised


@dataclass(slots=True)
class Ended:
    """How a request ended, for the metrics: ok, cut (its worker failed, or its client left, in the
    middle of a stream), aborted (the client left), refused, failed."""

    result: str = "aborted"


class FrontEnd:
    """Answers generation requests, at most `max_in_flight` at once."""

    def __init__(
        self,
        view: ClusterView,
        relay: Relay,
        pool: TokeniserPool,
        metrics: Metrics,
        *,
        max_in_flight: int,
    ) -> None:
        self._view = view
        self._relay = relay
        self._pool = pool
        self._metrics = metrics
        self._max_in_flight = max_in_flight
        self.in_flight = 0

    async def completions(self, call: Call[CompletionRequest, None]) -> object:
        with self._admitted("completions") as ended:
            generation = from_completion(call.body)
            return await self._answer(call, generation, "cmpl", CompletionReplies, ended)

    async def chat(self, call: Call[ChatRequest, None]) -> object:
        with self._admitted("chat") as ended:
            generation = from_chat(call.body)
            return await self._answer(call, generation, "chatcmpl", ChatReplies, ended)

    async def prepare(self, generation: Generation) -> Prepared:
        """Raises BadRequest, ModelUnknown, NoWorker, Overloaded."""
        key, model = self._view.model(generation.request.model)
        started = time.monotonic()
        prompt = await self._pool.tokenise(generation, model)
        self._metrics.tokenise.observe(time.monotonic() - started)
        return Prepared(key, model, prompt)

    def named_worker(self, request: web.Request, key: ModelKey) -> str | None:
        """The worker a client insists on. Raises BadRequest, naming those there are."""
        named = request.headers.get(WORKER_HEADER)
        known = self._view.worker_names(key)
        if named is not None and named not in known:
            raise BadRequest(
                f"{WORKER_HEADER} is {named[:MAX_REQUEST_ID_CHARS]!r}; the workers of model "
                f"{key.name!r} are: {', '.join(known)}"
            )
        return named

    @contextmanager
    def _admitted(self, endpoint: str) -> Iterator[Ended]:
        """Counts a request while it is open, and how it ended. Raises Overloaded."""
        ended = Ended()
        try:
            if self.in_flight >= self._max_in_flight:
                raise Overloaded(
                    f"{self.in_flight} requests are being answered, the most allowed",
                    retry_after_s=1.0,
                )
            self.in_flight += 1
            try:
                yield ended
            finally:
                self.in_flight -= 1
        except HttpError as error:
            ended.result = "refused" if error.status < 500 else "failed"
            raise
        finally:
            self._metrics.requests.labels(endpoint=endpoint, result=ended.result).inc()

    async def _answer(
        self,
        call: Call[Any, None],
        generation: Generation,
        id_prefix: str,
        replies_of: Callable[[Shape], Replies],
        ended: Ended,
    ) -> web.StreamResponse:
        arrived_at = time.monotonic()
        prepared = await self.prepare(generation)
        worker = self.named_worker(call.http, prepared.key)
        shape = Shape(
            id=f"{id_prefix}-{uuid.uuid4().hex}",
            model=prepared.model.name,
            created=now_seconds(),
            includes_usage=generation.includes_usage,
            gives_token_ids=generation.request.return_token_ids,
        )
        job = Job(
            request_id=_given_request_id(call.http) or shape.id,
            model=prepared.key,
            prompt=prepared.prompt,
            body=generation.body(
                prepared.model, prepared.prompt.token_ids, seed=secrets.randbits(SEED_BITS)
            ),
            delivery=Delivery.STREAM if generation.streams else Delivery.WHOLE,
            arrived_at=arrived_at,
            worker=worker,
        )
        async with self._relay.answer(job) as answer:
            if generation.streams:
                response = await _stream(call, answer, replies_of(shape))
            else:
                response = await _plain(answer, replies_of(shape), shape)
        ended.result = "ok" if answer.is_complete else "cut"
        return response


async def _plain(answer: Answer, replies: Replies, shape: Shape) -> web.Response:
    gathered = Gathered()
    async for chunk in answer.chunks():
        gather(gathered, chunk, shape)
    if answer.usage is None or gathered.finish_reason is None:
        raise WorkerFailed("the worker ended its answer without a usage or a finish reason")
    whole = replies.whole(gathered, answer.usage, answer.evidence)
    cached = str(answer.usage.prompt_tokens_details.cached_tokens)
    return web.Response(
        body=msgspec.json.encode(whole),
        content_type="application/json",
        headers=_headers(answer) | {"X-Moontide-Cached-Tokens": cached},
    )


async def _stream(call: Call[Any, None], answer: Answer, replies: Replies) -> web.StreamResponse:
    return await send_events(
        call,
        _events(answer, replies),
        keep_alive_seconds=KEEP_ALIVE_SECONDS,
        write_seconds=WRITE_SECONDS,
        headers=_headers(answer),
    )


async def _events(answer: Answer, replies: Replies) -> AsyncIterator[ServerEvent]:
    """Ends with `[DONE]`, or, where the worker fails in the middle, with an error event."""
    try:
        async for chunk in answer.chunks():
            for choice in chunk.choices:
                for part in replies.chunk(choice):
                    yield ServerEvent(msgspec.json.encode(part))
        if answer.usage is not None:
            for part in replies.end(answer.usage, answer.evidence):
                yield ServerEvent(msgspec.json.encode(part))
    except HttpError as error:
        logger.warning("stream_cut request=%s error=%s", answer.job.request_id, error)
        yield ServerEvent(msgspec.json.encode(openai_error(error)))
        return
    yield ServerEvent(b"[DONE]")


def _headers(answer: Answer) -> dict[str, str]:
    choice, prefill = answer.choice, answer.run.prefill_worker
    headers = {
        "X-Request-Id": answer.job.request_id,
        WORKER_HEADER: answer.run.worker.record.id,
        "X-Moontide-Reason": choice.reason,
        "X-Moontide-Predicted-Cached-Tokens": str(choice.cached_tokens),
        "X-Moontide-Attempts": str(answer.attempts),
    }
    if prefill is not None:
        headers["X-Moontide-Prefill-Worker"] = prefill.record.id
    return headers


def _given_request_id(request: web.Request) -> str | None:
    """The client's own id when it is printable and short. It only labels logs."""
    given = request.headers.get("X-Request-Id", "")
    is_usable = given.isascii() and given.isprintable() and len(given) <= MAX_REQUEST_ID_CHARS
    return given if given and is_usable else None

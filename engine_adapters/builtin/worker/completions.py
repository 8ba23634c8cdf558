"""`POST /v1/completions`: from a request body to the engine and back."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web

from moontide.kvstore import Tier
from moontide.kvstore.service import (
    DEFAULT_ERRORS,
    Call,
    HttpError,
    ServerEvent,
    send_events,
)

from ..engine.engine import Engine
from ..engine.output import Output, Reserved
from ..engine.sequence import ReceiveHandoff, Reuse, SendHandoff
from ..errors import EngineError, EngineStopped, InvalidRequest, Overloaded
from ..model import LoadedModel
from .api import (
    CachedTokens,
    Choice,
    Completion,
    CompletionRequest,
    Evidence,
    FirstToken,
    HandoffReply,
    PromptTokensDetails,
    Taken,
    Usage,
)
from .generation import Generation, Task
from .handoffs import Handoffs
from .metrics import WorkerMetrics

_MAX_ID_CHARS = 128
_DONE = ServerEvent(b"[DONE]")
_STATUS = {InvalidRequest: 400, Overloaded: 503, EngineStopped: 503}


def http_error(error: EngineError) -> HttpError:
    """The one table from the engine's errors to HTTP statuses."""
    status = _STATUS.get(type(error), 500)
    return HttpError(status, error.code, str(error), retryable=error.retryable)


News = AsyncGenerator[Output | Reserved, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """What every chunk of one answer has in common."""

    request: CompletionRequest
    model: str
    id: str
    created: int
    num_prompt: int
    num_given: int  # output tokens that the caller had before
    handoff: HandoffReply | None  # for the last chunk

    @property
    def tells_token_ids(self) -> bool:
        return self.request.return_token_ids or self.handoff is not None

    def chunk(self, output: Output) -> Completion:
        reason = output.finish if output.finish in ("stop", "length") else None
        choice = Choice(
            text=output.text,
            finish_reason=reason,
            token_ids=list(output.token_ids) if self.tells_token_ids else msgspec.UNSET,
        )
        return self._completion([choice])

    def reserved(self) -> Completion:
        """Says that the hand-off's pages are reserved."""
        return msgspec.structs.replace(
            self._completion([]), kv_transfer_params=HandoffReply(state="reserved")
        )

    def last(self, choices: list[Choice], num_output: int, reuse: Reuse) -> Completion:
        return msgspec.structs.replace(
            self._completion(choices),
            usage=_usage(self.num_prompt, self.num_given + num_output, reuse),
            moontide=_evidence(reuse),
            kv_transfer_params=self.handoff or msgspec.UNSET,
        )

    def _completion(self, choices: list[Choice]) -> Completion:
        return Completion(id=self.id, created=self.created, model=self.model, choices=choices)


class Completions:
    """The handler; safe for many requests at once."""

    def __init__(self, engine: Engine, model: LoadedModel, metrics: WorkerMetrics) -> None:
        self._engine = engine
        self._model = model
        self._metrics = metrics
        self._handoffs = Handoffs()

    async def create(self, call: Call[CompletionRequest, None]) -> Completion | web.StreamResponse:
        """Raises HttpError. A stream that has begun ends with an `error` event instead."""
        request = call.body
        if request.model not in (None, self._model.name):
            raise HttpError(
                404,
                "model_not_found",
                f"model {request.model!r} is not served here; this worker serves "
                f"{self._model.name!r}",
                field="model",
            )
        arrived_at = time.monotonic()
        try:
            task = await self._task(request)
            if isinstance(task.handoff, ReceiveHandoff):
                self._handoffs.check_free(task.handoff.key.hex())
            generation = Generation(self._engine, task)
        except EngineError as error:
            self._metrics.refused(error.code)
            raise http_error(error) from error
        answer = self._answer(call, task)
        async with generation:
            if isinstance(task.handoff, ReceiveHandoff):
                with self._handoffs.open(task.handoff.key.hex(), generation):
                    return await send_events(call, _events(answer, self._observe(generation, None)))
            news = self._observe(generation, arrived_at)
            if request.stream:
                return await send_events(call, _events(answer, news))
            return await _collect(answer, news)

    async def give_first_token(self, call: Call[FirstToken, None]) -> Taken:
        """Raises HttpError."""
        try:
            handoff_id = call.http.match_info["handoff_id"]
            self._handoffs.give_first_token(handoff_id, call.body.token_id)
        except EngineError as error:
            raise http_error(error) from error
        return Taken()

    async def _task(self, request: CompletionRequest) -> Task:
        """Raises InvalidRequest."""
        prompt = request.prompt
        if isinstance(prompt, str):
            if request.resume_tokens:
                raise InvalidRequest(
                    f"resume_tokens is {request.resume_tokens}, but the prompt is text; give token "
                    "ids"
                )
            encoding = await asyncio.to_thread(self._model.tokenizer.encode, prompt)
            prompt = encoding.ids
        return Task(
            prompt_ids=prompt,
            sampling=request.sampling(),
            num_resumed=request.resume_tokens,
            handoff=request.handoff(),
        )

    def _answer(self, call: Call[CompletionRequest, None], task: Task) -> _Answer:
        reply = None
        if isinstance(task.handoff, SendHandoff):
            reply = HandoffReply(
                handoff_id=task.handoff.key.hex(), store_instance=self._engine.store_instance
            )
        return _Answer(
            request=call.body,
            model=self._model.name,
            id=_request_id(call),
            created=int(time.time()),
            num_prompt=len(task.prompt_ids) - task.num_resumed,
            num_given=task.num_resumed + (1 if isinstance(task.handoff, ReceiveHandoff) else 0),
            handoff=reply,
        )

    async def _observe(self, generation: Generation, arrived_at: float | None) -> News:
        """`arrived_at` None: the first token is another worker's."""
        previous: float | None = None
        while True:
            news = await generation.next()
            if isinstance(news, Output):
                now = time.monotonic()
                if previous is not None:
                    self._metrics.next_token(now - previous)
                elif arrived_at is not None:
                    self._metrics.first_token(now - arrived_at)
                previous = now
            yield news
            if isinstance(news, Output) and news.finish is not None:
                return


async def _collect(answer: _Answer, outputs: News) -> Completion:
    text: list[str] = []
    token_ids: list[int] = []
    last = Output("", ())
    try:
        async for output in outputs:
            if isinstance(output, Output):
                text.append(output.text)
                token_ids += output.token_ids
                last = output
    except EngineError as error:
        raise http_error(error) from error
    whole = Output("".join(text), tuple(token_ids), last.finish)
    return answer.last(answer.chunk(whole).choices, len(token_ids), last.reuse or Reuse())


async def _events(answer: _Answer, outputs: News) -> AsyncIterator[ServerEvent]:
    num_output = 0
    reuse: Reuse | None = None
    try:
        async with contextlib.aclosing(outputs):
            async for output in outputs:
                if isinstance(output, Reserved):
                    yield _event(answer.reserved())
                    continue
                num_output += len(output.token_ids)
                reuse = output.reuse
                if output.text or output.finish or answer.tells_token_ids:
                    yield _event(answer.chunk(output))
    except EngineError as error:
        body = DEFAULT_ERRORS.render(http_error(error))
        yield ServerEvent(msgspec.json.encode(body))
        return
    yield _event(answer.last([], num_output, reuse or Reuse()))
    yield _DONE


def _event(chunk: Completion) -> ServerEvent:
    return ServerEvent(msgspec.json.encode(chunk))


def _request_id(call: Call[Any, Any]) -> str:
    """The caller's id is a label for its own logs; nothing is looked up by it."""
    given = call.http.headers.get("X-Request-Id", "")
    return given[:_MAX_ID_CHARS] or f"cmpl-{secrets.token_hex(12)}"


def _usage(num_prompt: int, num_output: int, reuse: Reuse) -> Usage:
    return Usage(
        prompt_tokens=num_prompt,
        completion_tokens=num_output,
        total_tokens=num_prompt + num_output,
        prompt_tokens_details=PromptTokensDetails(min(reuse.cached_tokens, num_prompt)),
    )


def _evidence(reuse: Reuse) -> Evidence:
    return Evidence(
        cached_by_tier=CachedTokens(
            hbm=reuse.hbm_tokens, dram=reuse.dram_tokens, nvme=reuse.nvme_tokens
        ),
        bytes_by_tier={tier: reuse.bytes_by_tier[tier] for tier in (Tier.DRAM, Tier.NVME)},
        bytes_by_transport={way: reuse.bytes_by_transport[way] for way in ("shm", "tcp", "file")},
        first_layer_at=reuse.first_layer_at,
        last_layer_at=reuse.last_layer_at,
        prefill_end_at=reuse.prefill_end_at,
        recomputed=reuse.recomputed,
    )

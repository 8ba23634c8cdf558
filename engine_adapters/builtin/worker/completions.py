"""`POST /v1/completions`: from a request body to the engine."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Any

from aiohttp import web

from moontide.kvstore.service import Call, HttpError, send_events

from ..engine.engine import Engine
from ..engine.output import Output
from ..engine.sequence import ReceiveHandoff, SendHandoff
from ..errors import EngineError, InvalidRequest
from ..model import LoadedModel
from .answer import Answer, News, collect, events
from .api import Completion, CompletionRequest, FirstToken, HandoffReply, Taken
from .generation import Generation, Task
from .handoffs import Handoffs
from .http_errors import http_error
from .metrics import WorkerMetrics

_MAX_ID_CHARS = 128


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
                    return await send_events(call, events(answer, self._observe(generation, None)))
            news = self._observe(generation, arrived_at)
            if request.stream:
                return await send_events(call, events(answer, news))
            return await collect(answer, news)

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

    def _answer(self, call: Call[CompletionRequest, None], task: Task) -> Answer:
        reply = None
        if isinstance(task.handoff, SendHandoff):
            reply = HandoffReply(
                handoff_id=task.handoff.key.hex(), store_instance=self._engine.store_instance
            )
        return Answer(
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


def _request_id(call: Call[Any, Any]) -> str:
    """The caller's id is a label for its own logs; nothing is looked up by it."""
    given = call.http.headers.get("X-Request-Id", "")
    return given[:_MAX_ID_CHARS] or f"cmpl-{secrets.token_hex(12)}"

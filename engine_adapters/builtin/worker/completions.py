"""`POST /v1/completions`: from a request body to the engine and back."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import msgspec
from aiohttp import web

from moontide.kvstore.service import (
    DEFAULT_ERRORS,
    Call,
    HttpError,
    ServerEvent,
    send_events,
)

from ..engine.engine import Engine
from ..engine.output import Output
from ..engine.sequence import Reuse
from ..errors import EngineError, EngineStopped, InvalidRequest, Overloaded
from ..model import LoadedModel, Sampling
from .api import (
    CachedTokens,
    Choice,
    Completion,
    CompletionRequest,
    Evidence,
    PromptTokensDetails,
    Usage,
)
from .metrics import WorkerMetrics

_MAX_ID_CHARS = 128
_DONE = ServerEvent(b"[DONE]")
_STATUS = {InvalidRequest: 400, Overloaded: 503, EngineStopped: 503}


def http_error(error: EngineError) -> HttpError:
    """The one table from the engine's errors to HTTP statuses."""
    status = _STATUS.get(type(error), 500)
    return HttpError(status, error.code, str(error), retryable=error.retryable)


Outputs = AsyncGenerator[Output, None]


class Generation:
    """One request in the engine. Leaving the context before its end aborts it."""

    def __init__(self, engine: Engine, prompt_ids: list[int], sampling: Sampling) -> None:
        self._engine = engine
        self._outputs: asyncio.Queue[Output] = asyncio.Queue()  # at most max_tokens + 1 items
        loop = asyncio.get_running_loop()

        def sink(output: Output) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody listens
                loop.call_soon_threadsafe(self._outputs.put_nowait, output)

        self._sequence_id = engine.submit(prompt_ids, sampling, sink)

    async def next(self) -> Output:
        """Raises EngineStopped when the engine ends first."""
        output = await self._outputs.get()
        if output.finish in ("error", "abort"):
            raise EngineStopped(output.message or "the request was aborted")
        return output

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._engine.abort(self._sequence_id)


@dataclass(frozen=True, slots=True)
class _Answer:
    """What every chunk of one answer has in common."""

    request: CompletionRequest
    model: str
    id: str
    created: int
    num_prompt: int

    def chunk(self, output: Output) -> Completion:
        reason = output.finish if output.finish in ("stop", "length") else None
        choice = Choice(
            text=output.text,
            finish_reason=reason,
            token_ids=list(output.token_ids) if self.request.return_token_ids else msgspec.UNSET,
        )
        return Completion(id=self.id, created=self.created, model=self.model, choices=[choice])

    def last(self, choices: list[Choice], num_output: int, reuse: Reuse) -> Completion:
        return Completion(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=choices,
            usage=_usage(self.num_prompt, num_output, reuse),
            moontide=_evidence(reuse),
        )


class Completions:
    """The handler; safe for many requests at once."""

    def __init__(self, engine: Engine, model: LoadedModel, metrics: WorkerMetrics) -> None:
        self._engine = engine
        self._model = model
        self._metrics = metrics

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
            prompt_ids = await self._encode(request.prompt)
            generation = Generation(self._engine, prompt_ids, request.sampling())
        except EngineError as error:
            self._metrics.refused(error.code)
            raise http_error(error) from error
        answer = _Answer(
            request, self._model.name, _request_id(call), int(time.time()), len(prompt_ids)
        )
        async with generation:
            outputs = self._observe(generation, arrived_at)
            if request.stream:
                return await send_events(call, _events(answer, outputs))
            return await _collect(answer, outputs)

    async def _encode(self, prompt: str | list[int]) -> list[int]:
        if isinstance(prompt, list):
            return prompt
        encoding = await asyncio.to_thread(self._model.tokenizer.encode, prompt)
        ids: list[int] = encoding.ids
        return ids

    async def _observe(self, generation: Generation, arrived_at: float) -> Outputs:
        previous: float | None = None
        while True:
            output = await generation.next()
            now = time.monotonic()
            if previous is None:
                self._metrics.first_token(now - arrived_at)
            else:
                self._metrics.next_token(now - previous)
            previous = now
            yield output
            if output.finish is not None:
                return


async def _collect(answer: _Answer, outputs: Outputs) -> Completion:
    text: list[str] = []
    token_ids: list[int] = []
    try:
        async for output in outputs:
            text.append(output.text)
            token_ids += output.token_ids
    except EngineError as error:
        raise http_error(error) from error
    whole = Output("".join(text), tuple(token_ids), output.finish)
    return answer.last(answer.chunk(whole).choices, len(token_ids), output.reuse or Reuse())


async def _events(answer: _Answer, outputs: Outputs) -> AsyncIterator[ServerEvent]:
    num_output = 0
    reuse: Reuse | None = None
    try:
        async with contextlib.aclosing(outputs):
            async for output in outputs:
                num_output += len(output.token_ids)
                reuse = output.reuse
                if output.text or output.finish or answer.request.return_token_ids:
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
        prompt_tokens_details=PromptTokensDetails(reuse.cached_tokens),
    )


def _evidence(reuse: Reuse) -> Evidence:
    return Evidence(
        cached_by_tier=CachedTokens(hbm=reuse.hbm_tokens, dram=reuse.dram_tokens),
        bytes_by_tier={"dram": reuse.loaded_bytes},
        bytes_by_transport={"shm": reuse.loaded_bytes},
        first_layer_at=reuse.first_layer_at,
        last_layer_at=reuse.last_layer_at,
        prefill_end_at=reuse.prefill_end_at,
        recomputed=reuse.recomputed,
    )

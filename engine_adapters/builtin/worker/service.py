"""The worker's HTTP routes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, fields
from typing import Any, Literal

from moontide.kvstore import Namespace
from moontide.kvstore.service import AnyRoute, Call, HttpError, Plain, Route, probe_routes

from ..engine.engine import Engine
from ..engine.stats import EngineStats
from ..errors import EngineError
from ..model import LoadedModel
from .api import (
    Cleared,
    Completion,
    CompletionRequest,
    FirstToken,
    ModelDocument,
    NamespaceFields,
    Taken,
)
from .completions import Completions
from .http_errors import http_error
from .metrics import WorkerMetrics

_CLEAR_SECONDS = 30.0


Role = Literal["prefill", "decode", "both"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStats(EngineStats):
    role: Role


class WorkerService:
    """Answers from the engine. Work is taken while `accepting`."""

    def __init__(
        self, engine: Engine, model: LoadedModel, namespace: Namespace, role: Role
    ) -> None:
        self.accepting = False
        self._role = role
        self._engine = engine
        self._metrics = WorkerMetrics(lambda: engine.stats)
        self._completions = Completions(engine, model, self._metrics)
        self._document = _document(engine, model, namespace)

    def routes(self) -> list[AnyRoute]:
        return [*self._work_routes(), *self._status_routes()]

    def _work_routes(self) -> list[AnyRoute]:
        return [
            Route(
                method="POST",
                path="/v1/completions",
                handler=self._complete,
                summary="Generate text after a prompt",
                request=CompletionRequest,
                response=Completion,
                stream=Completion,
                errors={
                    400: "the request is at fault",
                    404: "another model",
                    409: "the hand-off's id is in use",
                    503: "no room",
                },
                max_body_bytes=16 << 20,
            ),
            Route(
                method="POST",
                path="/v1/handoffs/{handoff_id}/first_token",
                handler=self._first_token,
                summary="Tell a decode worker token 1 of a hand-off; once more is no error",
                request=FirstToken,
                response=Taken,
                errors={
                    400: "no token of this model",
                    404: "unknown, or its request has ended",
                    409: "it was given another one",
                    503: "the engine is not running",
                },
            ),
            Route(
                method="GET",
                path="/v1/tokenizer",
                handler=self._tokenizer,
                summary="How this worker renders, tokenises and keys a prompt",
                response=ModelDocument,
            ),
            Route(
                method="POST",
                path="/v1/cache/clear",
                handler=self._clear,
                summary="Forget every block of the engine's pool that no request uses",
                response=Cleared,
                errors={503: "the engine is not running"},
            ),
        ]

    def _status_routes(self) -> list[AnyRoute]:
        return [
            *probe_routes(self._check_ready, self._metrics.render),
            Route(
                method="GET",
                path="/v1/stats",
                handler=self._stats,
                summary="Counters of the engine and of its use of the store",
                response=WorkerStats,
            ),
        ]

    async def _complete(self, call: Call[CompletionRequest, None]) -> Any:
        self._check_ready(call)
        return await self._completions.create(call)

    async def _first_token(self, call: Call[FirstToken, None]) -> Taken:
        return await self._completions.give_first_token(call)

    async def _tokenizer(self, call: Plain) -> ModelDocument:
        return self._document

    async def _clear(self, call: Plain) -> Cleared:
        try:
            clearing = asyncio.wrap_future(self._engine.clear_cache())
            async with asyncio.timeout(_CLEAR_SECONDS):
                return Cleared(await clearing)
        except EngineError as error:
            raise http_error(error) from error
        except TimeoutError as error:
            raise HttpError(
                503,
                "busy",
                f"the engine did not come to it within {_CLEAR_SECONDS:g} s",
                retryable=True,
            ) from error

    async def _stats(self, call: Plain) -> WorkerStats:
        stats = self._engine.stats
        known = {field.name: getattr(stats, field.name) for field in fields(stats)}
        return WorkerStats(role=self._role, **known)

    def _check_ready(self, call: Call[Any, Any]) -> None:
        if not (self.accepting and self._engine.is_alive):
            raise HttpError(
                503,
                "not_ready",
                "this worker is starting or shutting down; ask another",
                retryable=True,
            )


def _document(engine: Engine, model: LoadedModel, namespace: Namespace) -> ModelDocument:
    return ModelDocument(
        model=model.name,
        tokenizer=model.tokenizer_json,
        chat_template=model.chat_template,
        bos_token=model.bos_token,
        eos_token=model.eos_token,
        digest=model.tokenizer_digest,
        context_tokens=engine.room_tokens,
        block_tokens=namespace.block_tokens,
        namespace=namespace.digest.hex(),
        namespace_fields=NamespaceFields(
            weights_id=namespace.weights_id,
            tokenizer_digest=namespace.tokenizer_digest,
            block_tokens=namespace.block_tokens,
            rope_scaling=namespace.rope_scaling,
            adapter_digest=namespace.adapter_digest,
            salt=namespace.salt,
        ),
        layout=list(namespace.layout.groups),
    )

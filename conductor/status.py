"""`/v1/models`, `/v1/cluster`, `/v1/route`, health and metrics: what the Conductor knows, and what
it would do."""

from __future__ import annotations

import time
from typing import Any, TypeVar

import msgspec

from moontide.kvstore.following import FollowedStore
from moontide.kvstore.service import Call, HttpError, Plain

from .cluster.view import ClusterView
from .cluster.workers import Health, Worker
from .errors import BadRequest
from .frontend import FrontEnd
from .generation import Generation, from_chat, from_completion
from .metrics import Metrics
from .protocol import (
    ChatRequest,
    CompletionPrompt,
    CompletionRequest,
    GenerationRequest,
    Messages,
    Model,
    ModelList,
)
from .routing import Choice, Estimate, Refusal, Snapshot, route, route_to

_RequestT = TypeVar("_RequestT", bound=GenerationRequest)


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    url: str
    role: str
    model: str
    node: str
    instance: str
    health: Health
    usable: bool
    excluded: str | None  # why not
    detail: str
    events: str  # live: its node tells what it holds; silent: its hits are unknown
    open_requests: int
    max_running: int
    pending_tokens: int
    prefill_tokens_per_s: float
    token_seconds: float  # between tokens of one request, as measured; 0: not now


class StoreStatus(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    admin_url: str
    instance: str
    events: str  # snapshot, live, broken, none
    detail: str
    seconds_since_heard: float | None
    seq: int
    blocks: int
    resyncs: int
    skipped_blocks: int


class IndexStatus(msgspec.Struct, frozen=True, kw_only=True):
    blocks: int
    max_blocks: int
    warm: bool  # every registered store has told its whole snapshot


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    workers: list[WorkerStatus]
    stores: list[StoreStatus]
    index: IndexStatus
    requests_in_flight: int


class EstimateStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One plan: `worker` does all, or what comes after `prefill_worker`."""

    worker: str
    prefill_worker: str | None
    cached_tokens: int
    cached_by_tier: dict[str, int]  # at the worker that prefills: hbm, dram, nvme, remote
    ttft_seconds: float
    queue_seconds: float
    load_seconds: float
    prefill_seconds: float
    handoff_seconds: float


class RouteStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What would be done with the request now."""

    prompt_tokens: int
    blocks: int
    worker: str | None
    prefill_worker: str | None
    reason: str
    cached_tokens: int
    estimates: list[EstimateStatus]
    excluded: dict[str, str]


class RouteRequest(ChatRequest, frozen=True, kw_only=True):
    """The body of a completion (with `prompt`) or of a chat completion (with `messages`)."""

    messages: Messages | None = None  # type: ignore[assignment] # optional here
    prompt: CompletionPrompt | None = None

    def generation(self) -> Generation:
        """Raises BadRequest, NotSupported."""
        given = [name for name in ("prompt", "messages") if getattr(self, name) is not None]
        if len(given) != 1:
            raise BadRequest(
                f"{' and '.join(given) or 'neither prompt nor messages'} given; give one of both",
                field="prompt",
            )
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        if self.prompt is not None:
            return from_completion(_narrowed(CompletionRequest, values))
        return from_chat(_narrowed(ChatRequest, values))


class Status:
    """Read-only answers; `route` decides, and sends nothing."""

    def __init__(self, view: ClusterView, front_end: FrontEnd, metrics: Metrics) -> None:
        self._view = view
        self._front_end = front_end
        self._metrics = metrics
        self._started_at = int(time.time())

    async def models(self, call: Plain) -> ModelList:
        contexts: dict[str, int] = {}
        for worker in self._view.workers.values():
            record = worker.record
            known = contexts.get(record.model, record.context_tokens)
            contexts[record.model] = min(known, record.context_tokens)
        return ModelList(
            [
                Model(id=name, created=self._started_at, max_model_len=tokens)
                for name, tokens in sorted(contexts.items())
            ]
        )

    async def cluster(self, call: Plain) -> ClusterStatus:
        index = self._view.index
        return ClusterStatus(
            workers=[self._worker(worker) for worker in self._view.workers.values()],
            stores=[self._store(store) for store in self._view.stores.values()],
            index=IndexStatus(
                blocks=index.num_blocks, max_blocks=index.max_blocks, warm=self._view.is_warm()
            ),
            requests_in_flight=self._front_end.in_flight,
        )

    async def route(self, call: Call[RouteRequest, None]) -> RouteStatus:
        generation = call.body.generation()
        prepared = await self._front_end.prepare(generation)
        prompt = prepared.prompt
        worker = self._front_end.named_worker(call.http, prepared.key)
        body = generation.body(prepared.model, prompt.token_ids, seed=0)  # the same refusals
        snapshot = self._view.snapshot(
            prepared.key,
            prompt_tokens=len(prompt.token_ids),
            keys=prompt.keys,
            max_tokens=body.max_tokens,
        )
        decision = route(snapshot) if worker is None else route_to(snapshot, worker)
        return _route_status(decision, snapshot, len(prompt.keys))

    def check_ready(self, call: Plain) -> None:
        """Raises HttpError unless the cluster is known and some worker takes requests."""
        if call.closing.is_set():
            raise HttpError(503, "closing", "shutting down", retryable=True)
        if not self._view.is_known:
            raise HttpError(503, "starting", "the membership was not read yet", retryable=True)
        if not self._view.has_usable_worker():
            raise HttpError(503, "no_worker", "no worker takes requests now", retryable=True)

    def metrics(self) -> bytes:
        view, metrics = self._view, self._metrics
        health = [worker.health for worker in view.workers.values()]
        for state in Health:
            metrics.workers.labels(health=state).set(health.count(state))
        metrics.silent_workers.set(
            sum(not view.hears_events_of(worker) for worker in view.workers.values())
        )
        streams = view.index.streams().values()
        metrics.open_requests.set(self._front_end.in_flight)
        metrics.index_blocks.set(view.index.num_blocks)
        metrics.index_skipped.set(sum(stream.skipped for stream in streams))
        metrics.resyncs.set(sum(stream.resyncs for stream in streams))
        return metrics.text()

    def _worker(self, worker: Worker) -> WorkerStatus:
        record, excluded = worker.record, self._view.exclusion(worker)
        return WorkerStatus(
            id=record.id,
            url=record.url,
            role=record.role,
            model=record.model,
            node=record.node,
            instance=record.instance,
            health=worker.health,
            usable=excluded is None,
            excluded=excluded,
            detail=worker.model_problem or worker.detail,
            events="live" if self._view.hears_events_of(worker) else "silent",
            open_requests=worker.open_requests,
            max_running=record.max_running,
            pending_tokens=worker.pending_tokens,
            prefill_tokens_per_s=worker.speeds.prefill_tokens_per_s,
            token_seconds=worker.speeds.token_seconds,
        )

    def _store(self, store: FollowedStore) -> StoreStatus:
        stream = self._view.index.streams().get(store.record.id)
        heard = store.heard_at
        return StoreStatus(
            id=store.record.id,
            admin_url=store.record.admin_url,
            instance=store.record.instance,
            events=stream.phase.value if stream else "none",
            detail=store.detail,
            seconds_since_heard=None if heard is None else time.monotonic() - heard,
            seq=stream.seq if stream else 0,
            blocks=stream.num_blocks if stream else 0,
            resyncs=stream.resyncs if stream else 0,
            skipped_blocks=stream.skipped if stream else 0,
        )


def _narrowed(kind: type[_RequestT], values: dict[str, Any]) -> _RequestT:
    """The fields that `kind` has, checked again."""
    known = {name: values[name] for name in kind.__struct_fields__ if name in values}
    try:
        return msgspec.convert(known, kind, from_attributes=True)
    except msgspec.ValidationError as error:
        raise BadRequest(str(error)) from error


def _route_status(decision: Choice | Refusal, snapshot: Snapshot, num_blocks: int) -> RouteStatus:
    plan = decision.plan if isinstance(decision, Choice) else None
    return RouteStatus(
        prompt_tokens=snapshot.prompt_tokens,
        blocks=num_blocks,
        worker=plan.worker if plan else None,
        prefill_worker=plan.prefill_worker if plan else None,
        reason=decision.reason if isinstance(decision, Choice) else decision.message,
        cached_tokens=plan.cached_tokens if plan else 0,
        estimates=[_estimate(estimate) for estimate in decision.estimates],
        excluded={c.id: c.excluded for c in snapshot.candidates if c.excluded is not None},
    )


def _estimate(estimate: Estimate) -> EstimateStatus:
    return EstimateStatus(
        worker=estimate.worker,
        prefill_worker=estimate.prefill_worker,
        cached_tokens=estimate.cached_tokens,
        cached_by_tier=dict(estimate.cached),
        ttft_seconds=estimate.ttft_seconds,
        queue_seconds=estimate.queue_seconds,
        load_seconds=estimate.load_seconds,
        prefill_seconds=estimate.prefill_seconds,
        handoff_seconds=estimate.handoff_seconds,
    )

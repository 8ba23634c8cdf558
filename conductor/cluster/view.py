"""The Conductor's picture of the cluster: members, models, who holds what. Pure: fed by the
watcher, read by the front end, all on one loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from moontide.kvstore import BlockKey
from moontide.kvstore.following import STALE_SECONDS, FollowedStore
from moontide.kvstore.index import Phase, PrefixIndex
from moontide.kvstore.membership import Member, StoreRecord, WorkerRecord

from ..errors import ModelUnknown, NoWorker
from ..routing import Candidate, Exclusion, Role, Snapshot
from .holdings import Holdings
from .models import Model, ModelKey
from .workers import Worker

MAX_REMEMBERED_MODELS = 256


@dataclass(frozen=True, slots=True)
class Policy:
    """What bounds a decision."""

    max_queue: int = 256  # requests a worker may have beyond those it runs at once
    ttft_limit_s: float | None = None
    token_limit_s: float | None = None


@dataclass(frozen=True, slots=True)
class Changes:
    """What a new membership picture brought; a restarted member ended and started."""

    started_workers: list[Worker]
    ended_workers: list[Worker]
    started_stores: list[FollowedStore]
    ended_stores: list[FollowedStore]


class ClusterView:
    """Members by id, models by what their workers agree on. `clock` is monotonic."""

    def __init__(self, index: PrefixIndex, policy: Policy, clock: Callable[[], float]) -> None:
        self.index = index
        self.workers: dict[str, Worker] = {}
        self.stores: dict[str, FollowedStore] = {}
        self.models: dict[ModelKey, Model] = {}
        self.is_known = False  # the membership was read at least once
        self._policy = policy
        self._clock = clock
        self._departed: dict[str, Worker] = {}  # instance → left, with requests still open
        self._remembered: dict[str, None] = {}  # model names ever served, oldest first

    # -- membership -------------------------------------------------------------------

    def update(self, members: Iterable[Member]) -> Changes:
        """Takes a membership picture in. A record that only changed its words (same instance)
        goes on with its state."""
        self.is_known = True
        workers: dict[str, WorkerRecord] = {}
        stores: dict[str, StoreRecord] = {}
        for member in members:
            if isinstance(member.record, WorkerRecord):
                workers[member.record.id] = member.record
            else:
                stores[member.record.id] = member.record
        changes = Changes([], [], [], [])
        self._update_workers(workers, changes)
        self._update_stores(stores, changes)
        return changes

    def add_model(self, key: ModelKey, model: Model) -> None:
        self.models[key] = model
        self._remembered[key.name] = None
        if len(self._remembered) > MAX_REMEMBERED_MODELS:
            del self._remembered[next(iter(self._remembered))]

    def _update_workers(self, records: dict[str, WorkerRecord], changes: Changes) -> None:
        for worker in list(self.workers.values()):
            record = records.get(worker.record.id)
            if record is not None and record.instance == worker.record.instance:
                worker.record = record
                continue
            del self.workers[worker.record.id]
            worker.is_gone = True
            self._departed[worker.record.instance] = worker
            changes.ended_workers.append(worker)
        for record in records.values():
            if record.id not in self.workers:
                worker = self.workers[record.id] = self._arrived(record)
                changes.started_workers.append(worker)
        self._departed = {k: w for k, w in self._departed.items() if w.open_requests}
        served = {ModelKey.of(record) for record in records.values()}
        self.models = {key: model for key, model in self.models.items() if key in served}

    def _arrived(self, record: WorkerRecord) -> Worker:
        """A new worker, or one whose lease had only lapsed: it goes on with its open requests."""
        worker = self._departed.pop(record.instance, None)
        if worker is None:
            return Worker(record, self._clock())
        worker.record, worker.is_gone = record, False
        return worker

    def _update_stores(self, records: dict[str, StoreRecord], changes: Changes) -> None:
        for store in list(self.stores.values()):
            record = records.get(store.record.id)
            if record != store.record:
                del self.stores[store.record.id]
                self.index.drop_stream(store.record.id)
                changes.ended_stores.append(store)
        for record in records.values():
            if record.id not in self.stores:
                store = self.stores[record.id] = FollowedStore(record)
                changes.started_stores.append(store)

    # -- questions --------------------------------------------------------------------

    def model_names(self) -> list[str]:
        """Models that live members serve."""
        return sorted({worker.record.model for worker in self.workers.values()})

    def model(self, name: str) -> tuple[ModelKey, Model]:
        """How most of its workers serve `name`, with the context that each of them has room for:
        any of them may have to take a request over. Raises ModelUnknown, naming those there are,
        and NoWorker where the model is known but nobody can serve it now."""
        keys = [ModelKey.of(w.record) for w in self.workers.values() if w.record.model == name]
        usable = [key for key in keys if key in self.models]
        if usable:
            best = max(usable, key=lambda key: (usable.count(key), key.namespace))
            room = min(w.record.context_tokens for w in self._serving(best))
            return best, replace(self.models[best], context_tokens=room)
        if keys or name in self._remembered or not self.workers:
            raise NoWorker(
                f"no worker serves model {name!r} now; registered workers: {len(self.workers)}",
                retry_after_s=1.0,
            )
        raise ModelUnknown(
            f"model {name!r} does not exist; there are: {', '.join(self.model_names())}",
            field="model",
        )

    def worker_names(self, key: ModelKey) -> list[str]:
        """Workers that serve a model."""
        return sorted(worker.record.id for worker in self._serving(key))

    def snapshot(
        self,
        key: ModelKey,
        *,
        prompt_tokens: int,
        keys: Sequence[BlockKey],
        max_tokens: int,
        tried: frozenset[str] = frozenset(),
    ) -> Snapshot:
        """Every worker as a decision about this prompt sees it; `tried` are instances."""
        layout = self.models[key].namespace.layout if key in self.models else None
        matches = (
            self.index.longest_prefix(key.namespace, keys, layout) if layout is not None else {}
        )
        holdings = Holdings(matches, {store.record.instance for store in self.stores.values()})
        return Snapshot(
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            candidates=tuple(
                self._candidate(worker, key, holdings, tried) for worker in self.workers.values()
            ),
            ttft_limit_s=self._policy.ttft_limit_s,
        )

    def has_usable_worker(self) -> bool:
        return any(self.exclusion(worker) is None for worker in self.workers.values())

    def exclusion(self, worker: Worker) -> Exclusion | None:
        """Why nothing at all is sent to `worker`, if so."""
        if worker.is_refused:
            return Exclusion.MISMATCH
        if ModelKey.of(worker.record) not in self.models:
            return Exclusion.NOT_READY
        return worker.exclusion(
            max_queue=self._policy.max_queue, token_seconds_limit=self._policy.token_limit_s
        )

    def has_substitute(self, worker: Worker) -> bool:
        """Whether somebody else could take what `worker` has."""
        return any(
            other is not worker and self.exclusion(other) is None
            for other in self._serving(ModelKey.of(worker.record))
        )

    def is_warm(self) -> bool:
        """Whether every registered store has told its whole snapshot."""
        streams = self.index.streams()
        return self.is_known and all(
            name in streams and streams[name].phase is Phase.LIVE for name in self.stores
        )

    def hears_events_of(self, worker: Worker) -> bool:
        """Whether what the worker's node holds is being told: if not, its hits are unknown."""
        phases = self.index.streams()
        now = self._clock()
        return any(
            store.record.instance == worker.record.store_instance
            and store.heard_at is not None
            and now - store.heard_at <= STALE_SECONDS
            and store.record.id in phases
            and phases[store.record.id].phase is Phase.LIVE
            for store in self.stores.values()
        )

    def _serving(self, key: ModelKey) -> list[Worker]:
        return [
            worker
            for worker in self.workers.values()
            if ModelKey.of(worker.record) == key and not worker.is_refused
        ]

    def _candidate(
        self,
        worker: Worker,
        key: ModelKey,
        holdings: Holdings,
        tried: frozenset[str],
    ) -> Candidate:
        record = worker.record
        excluded = self.exclusion(worker)
        if record.instance in tried:
            excluded = Exclusion.TRIED
        elif ModelKey.of(record) != key:
            excluded = Exclusion.MISMATCH
        return Candidate(
            id=record.id,
            role=Role(record.role),
            excluded=excluded,
            open_requests=worker.open_requests,
            max_running=record.max_running,
            pending_tokens=worker.pending_tokens,
            cached=holdings.cached_tokens(record),
            store=holdings.store_of(record),
            speeds=worker.speeds,
        )

"""Between the engine and the store: lookups, loads, stores and hbm events, none of which can hold
the engine up for longer than the settings say."""

from __future__ import annotations

import time
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from ..model import KVTensors
from .breaker import Breaker
from .layer_load import LayerLoad
from .layer_store import LayerStore
from .lookups import Lookups
from .page_pool import PagePool
from .scheduler import Chunk
from .sequence import Sequence
from .stats import StoreCounters
from .store_door import Door
from .store_jobs import JobDesk, StagingBudget


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """How long the engine waits for the store, and how much memory transfers may use."""

    lookup_timeout_s: float = 0.25
    load_timeout_s: float = 2.0  # from the start of a step to its last layer
    store_timeout_s: float = 30.0  # from the start of a step to its commit
    pin_s: float = 10.0
    staging_bytes: int = 256 << 20
    breaker_threshold: int = 3
    breaker_cooldown_s: float = 1.0


class StoreConnector:
    """Engine thread only."""

    def __init__(self, door: Door, tensors: KVTensors, settings: StoreSettings) -> None:
        self._settings = settings
        self._tensors = tensors
        breaker = Breaker(settings.breaker_threshold, settings.breaker_cooldown_s)
        self._desk = JobDesk(door, breaker, StagingBudget(settings.staging_bytes))
        self._lookups = Lookups(
            self._desk, timeout_s=settings.lookup_timeout_s, pin_s=settings.pin_s
        )
        self._num_lookups = self._num_loads = self._loads_failed = self._loaded_bytes = 0
        self._num_stores = self._stores_given_up = self._stored_bytes = 0

    def filenos(self) -> list[int]:
        """What to wait on for news; nothing while none is due or the store is left alone."""
        if self._desk.breaker.is_open or not self._desk.num_outstanding:
            return []
        fileno = self._desk.attempt(lambda: self._desk.kv.fileno())
        return [] if fileno is None else [fileno]

    def seconds_to_deadline(self) -> float:
        return self._lookups.seconds_to_deadline()

    def lookup(self, sequence: Sequence) -> None:
        self._num_lookups += 1
        self._lookups.ask(sequence)

    def poll(self) -> list[tuple[Sequence, int | None]]:
        """Lookups answered since the last call."""
        self._desk.poll()
        return self._lookups.answers()

    def collect(self) -> None:
        """Takes in finished jobs, so that their staging is free again."""
        self._desk.poll()

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        self._lookups.forget(sequence)

    def begin_loads(self, chunks: Seq[Chunk]) -> dict[Chunk, LayerLoad]:
        """Asks for the first layers at once; tickets of chunks that load nothing are released."""
        loading = [chunk for chunk in chunks if chunk.load]
        loads = {}
        for chunk in chunks:
            ticket = self._lookups.ticket(chunk.sequence)
            if ticket is None:
                assert not chunk.load, "a load without a lookup"
            elif not chunk.load:
                self._lookups.forget(chunk.sequence)  # the device has it all
            else:
                loads[chunk] = LayerLoad(
                    self._desk,
                    self._tensors,
                    chunk,
                    ticket,
                    window_bytes=self._settings.staging_bytes // (4 * len(loading)),
                    deadline=time.monotonic() + self._settings.load_timeout_s,
                )
        return loads

    def begin_stores(self, chunks: Seq[Chunk]) -> dict[Chunk, LayerStore]:
        """None while the store is left alone."""
        if self._desk.breaker.is_open:
            return {}
        deadline = time.monotonic() + self._settings.store_timeout_s
        return {
            chunk: LayerStore(self._desk, self._tensors, chunk, deadline=deadline)
            for chunk in chunks
            if chunk.store
        }

    def end_step(self, loads: Iterable[LayerLoad], stores: Iterable[LayerStore]) -> None:
        """Counts what came of it; the loads' tickets are not needed any more."""
        for load in loads:
            self._num_loads += 1
            self._loads_failed += load.failed
            self._loaded_bytes += load.loaded_bytes
            load.chunk.sequence.reuse.loaded_bytes += load.loaded_bytes
            self._lookups.forget(load.chunk.sequence)
        for store in stores:
            self._num_stores += 1
            self._stores_given_up += store.given_up
            self._stored_bytes += store.stored_bytes

    def publish(self, pool: PagePool) -> None:
        """Tells the store what the device cache gained and lost since it was last told; the client
        repeats it all to a new daemon."""
        if not self._desk.door.daemon():
            return
        changes = pool.drain_changes()
        if changes.stored or changes.removed:
            self._desk.attempt(lambda: self._desk.kv.publish_hbm(changes.stored, changes.removed))

    def counters(self) -> StoreCounters:
        return StoreCounters(
            lookups=self._num_lookups,
            lookups_unanswered=self._lookups.unanswered,
            loads=self._num_loads,
            loads_failed=self._loads_failed,
            loaded_bytes=self._loaded_bytes,
            stores=self._num_stores,
            stores_given_up=self._stores_given_up,
            stored_bytes=self._stored_bytes,
            errors=self._desk.errors,
            breaker_opened=self._desk.breaker.opened,
            outstanding_jobs=self._desk.num_outstanding,
            pending_lookups=self._lookups.num_pending,
            tickets=self._lookups.num_tickets,
            staging_bytes=self._desk.staging.used_bytes,
        )

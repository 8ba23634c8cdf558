"""The engine: several rails to each peer behind the interface of one transport (ADR 0023)."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from ..batches import Batch
from ..errors import TransferError
from ..transport import BatchTransport
from ..types import Opcode, SegmentAddress, SliceState, SliceStatus, TransferRequest
from .dispatcher import Dispatcher, Settlement, Todo
from .latency import NO_TRANSPORT, Latencies, Latency
from .parcels import Terms, parcels_of
from .paths import Attempt, Path
from .types import ANYWHERE, EngineLimits, Location, Rail, RailRanks


class TransferEngine(BatchTransport):
    """A transport whose slices go by priority, over whichever rail is best for each peer, and once
    more over another when a rail fails them. Rails become the engine's, which closes them. It has
    no thread that moves bytes: what a rail's thread ends, that thread goes on with."""

    def __init__(
        self,
        rails: Iterable[Rail],
        limits: EngineLimits | None = None,
        *,
        ranks: RailRanks | None = None,
        home: Location = ANYWHERE,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        """`home`: where local memory lies; `rng` spreads the probes of broken paths."""
        self._limits = limits or EngineLimits()
        super().__init__("transfer-engine", self._limits.in_flight)
        self._rails = {rail.name: rail for rail in rails}
        self._clock = clock
        self._lock = threading.Lock()
        self._dispatcher = Dispatcher(
            self._rails.values(), ranks or {}, self._limits, rng or random.Random()
        )
        self._home = home
        self._latencies = Latencies()
        self._here = _Here()

    # -- peers ------------------------------------------------------------------------

    def add_route(self, instance: str, host: str, port: int) -> None:
        """Over every rail. What was known of its paths is forgotten, and what waits for them fails.
        Raises InvalidRequest when there are too many."""
        for rail in self._rails.values():
            rail.routes.add_route(instance, host, port)
        self._do(self._decide(lambda _: self._dispatcher.add_peer(instance, self._rails)))

    def drop_route(self, instance: str) -> None:
        """The peer is gone: what is under way to it fails. Unknown ones are left alone."""
        self._do(self._decide(lambda _: self._dispatcher.drop_peer(instance)))
        for rail in self._rails.values():
            rail.routes.drop_route(instance)

    def is_reachable(self, instance: str) -> bool:
        """False: slices for it would fail at once."""
        with self._lock:
            return self._dispatcher.is_reachable(instance)

    def latencies(self) -> list[Latency]:
        return self._latencies.report()

    # -- batches ----------------------------------------------------------------------

    def _start(self, batch: Batch) -> None:
        terms = Terms(self._home, self._clock())
        parcels = list(parcels_of(self._batches, batch, terms, self._limits))
        # Whoever ends the batch after this look finds its parcels in the dispatcher.
        self._do(
            self._decide(
                lambda now: (
                    self._dispatcher.put(parcels, now)
                    if batch.ending is None
                    else self._dispatcher.refuse(parcels, batch.ending)
                )
            )
        )

    def _stop(self, batch: Batch, ending: SliceStatus) -> None:
        self._do(self._decide(lambda now: self._dispatcher.withdraw(batch, ending, now)))

    def _shut(self) -> None:
        for rail in self._rails.values():
            rail.transport.close()

    def _end_due(self, now: float) -> float | None:
        following = super()._end_due(now)
        self._do(self._decide(self._dispatcher.due))
        return following

    # -- doing what was decided -------------------------------------------------------

    def _decide(self, ask: Callable[[float], Todo]) -> Todo:
        with self._lock:
            todo = ask(self._clock())
            probe_at = self._dispatcher.next_due()
        if probe_at is not None:
            self._deadlines.arm(probe_at)
        return todo

    def _do(self, todo: Todo) -> None:
        """A rail may end an attempt before it has taken it: what follows is done after it."""
        here = self._here
        here.todo.append(todo)
        if here.is_busy:
            return
        here.is_busy = True
        try:
            while here.todo:
                self._carry_out(here.todo.popleft())
        finally:
            here.is_busy = False

    def _carry_out(self, todo: Todo) -> None:
        for attempt in todo.start:
            self._attempt(attempt)
        for settlement in todo.settle:
            self._settle(settlement)
        for attempt in todo.cancel:
            if attempt.batch is not None:
                attempt.path.rail.transport.cancel(attempt.batch)
        for path in todo.probe:
            self._probe(path)

    def _attempt(self, attempt: Attempt) -> None:
        parcel, transport = attempt.parcel, attempt.path.rail.transport
        try:
            attempt.batch = transport.submit(
                parcel.requests,
                deadline=parcel.batch.deadline,
                then=partial(self._ended, attempt),
                priority=parcel.batch.priority,
            )
        except TransferError as error:
            status = SliceStatus(SliceState.FAILED, error.reason)
            self._ended(attempt, [status] * len(parcel.requests))
            return
        if parcel.batch.ending is not None:  # perhaps before there was anything to cancel
            transport.cancel(attempt.batch)

    def _ended(self, attempt: Attempt, statuses: Sequence[SliceStatus]) -> None:
        self._do(self._decide(lambda now: self._dispatcher.ended(attempt, statuses, now)))

    def _probe(self, path: Path) -> None:
        """One byte of a segment; a refusal will do."""
        address = SegmentAddress(path.instance, 0)
        request = TransferRequest(Opcode.READ, memoryview(bytearray(1)), address, 0)
        try:
            path.rail.transport.submit(
                [request],
                deadline=self._clock() + self._limits.breaker.probe_seconds,
                then=partial(self._probed, path),
            )
        except TransferError as error:
            self._probed(path, [SliceStatus(SliceState.FAILED, error.reason)])

    def _probed(self, path: Path, statuses: Sequence[SliceStatus]) -> None:
        [status] = statuses
        self._do(self._decide(lambda now: self._dispatcher.probed(path, status, now)))

    def _settle(self, settlement: Settlement) -> None:
        parcel, positions, path = settlement.parcel, settlement.positions, settlement.path
        ending = parcel.batch.ending
        statuses = settlement.statuses if ending is None else [ending] * len(positions)
        indices = parcel.indices
        if len(positions) < len(indices):
            indices = [indices[position] for position in positions]
        seconds = self._clock() - parcel.terms.submitted
        kind = path.rail.kind if path is not None else NO_TRANSPORT
        self._latencies.add(kind, parcel.opcode, statuses, seconds)
        self._batches.settle_all(parcel.batch, indices, statuses)


class _Here(threading.local):
    """What the calling thread is at."""

    def __init__(self) -> None:
        self.todo: deque[Todo] = deque()
        self.is_busy = False

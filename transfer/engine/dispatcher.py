"""What is given to which rail when, and what becomes of it: the decisions, without any I/O.

    put ──► waits ──room on its path──► attempt ──► settled: DONE, or what the peer answered
              ▲                            │ the path failed it
              └── another path is left ────┴── none is: settled FAILED

A parcel is on one path at a time, and waits for the next only once the last one has let go of its
memory.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..batches import Batch
from ..errors import NoRoute, Unavailable
from ..types import Opcode, SliceState, SliceStatus
from .parcels import Parcel
from .paths import Attempt, Path, Peer
from .types import EngineLimits, Rail, RailName, RailRanks

_LINK_CODES = frozenset(
    ("unavailable", "unreachable", "access_denied", "other_instance", "version_mismatch")
)
"""Failures of the way to a peer."""
_ANSWER_CODES = frozenset(("", "unknown_segment", "out_of_range", "read_only"))
"""What a peer that works says of a slice that is done, or that it refuses."""


@dataclass(frozen=True, slots=True, eq=False)
class Settlement:
    """How slices of a parcel ended, by position in it; `path`: what carried them last."""

    parcel: Parcel
    positions: Sequence[int]
    statuses: Sequence[SliceStatus]
    path: Path | None


@dataclass(slots=True)
class Todo:
    """For the shell, in any order."""

    start: list[Attempt] = field(default_factory=list)
    cancel: list[Attempt] = field(default_factory=list)
    settle: list[Settlement] = field(default_factory=list)
    probe: list[Path] = field(default_factory=list)


class Dispatcher:
    """Told of everything that happens, answers what to do. Used by one thread at a time."""

    def __init__(
        self, rails: Iterable[Rail], ranks: RailRanks, limits: EngineLimits, rng: random.Random
    ) -> None:
        self._rails: Mapping[RailName, Rail] = {rail.name: rail for rail in rails}
        self._ranks = ranks
        self._limits = limits
        self._rng = rng
        self._peers: dict[str, Peer] = {}
        self._broken: dict[Path, None] = {}

    # -- peers ------------------------------------------------------------------------

    def add_peer(self, instance: str, rails: Iterable[RailName]) -> Todo:
        """Every path of it works until it is seen not to. What waits for one that is known
        fails."""
        todo = self.drop_peer(instance)
        paths = [Path(instance, self._rails[name], self._limits, self._rng) for name in rails]
        self._peers[instance] = Peer(paths, self._ranks)
        return todo

    def drop_peer(self, instance: str) -> Todo:
        """What waits for it fails; what is under way ends with its rails, and is not tried again.
        Unknown ones are left alone."""
        todo = Todo()
        peer = self._peers.pop(instance, None)
        if peer is not None:
            for path in peer.paths:
                self._broken.pop(path, None)
            for queue in peer.queues.values():
                for parcel in queue:
                    _settle_all(todo, parcel, _no_route(instance))
        return todo

    def is_reachable(self, instance: str) -> bool:
        """Some path to it works, as far as is known."""
        peer = self._peers.get(instance)
        return peer is not None and peer.is_reachable

    # -- parcels ----------------------------------------------------------------------

    def put(self, parcels: Iterable[Parcel], now: float) -> Todo:
        todo = Todo()
        crowded: dict[Peer, None] = {}
        for parcel in parcels:
            peer = self._peers.get(parcel.instance)
            if peer is None:
                _settle_all(todo, parcel, _no_route(parcel.instance))
            elif parcel.terms.location in peer.queues or not _send(peer, parcel, todo, now):
                peer.put(parcel)
                crowded[peer] = None
        for peer in crowded:
            _advance(peer, todo, now)
        return todo

    def refuse(self, parcels: Iterable[Parcel], status: SliceStatus) -> Todo:
        """Instead of `put`."""
        todo = Todo()
        for parcel in parcels:
            _settle_all(todo, parcel, status)
        return todo

    def ended(self, attempt: Attempt, statuses: Sequence[SliceStatus], now: float) -> Todo:
        """The rail has let go of the attempt's memory."""
        attempt.path.end(attempt)
        self._judge(attempt, statuses, now)
        todo = Todo()
        parcel, path = attempt.parcel, attempt.path
        peer = self._peers.get(path.instance)
        again = self._try_again(peer, attempt, statuses, now) if peer is not None else []
        positions: Sequence[int] = range(len(statuses))
        if again:
            positions = [position for position in positions if position not in again]
            statuses = [statuses[position] for position in positions]
        if positions:
            todo.settle.append(Settlement(parcel, positions, statuses, path))
        if peer is not None:
            _advance(peer, todo, now)
        return todo

    def withdraw(self, batch: Batch, ending: SliceStatus, now: float) -> Todo:
        """The batch is ending: what waits is settled, what is under way is cancelled."""
        todo = Todo()
        instances = dict.fromkeys(request.remote.instance for request in batch.requests)
        for peer in filter(None, map(self._peers.get, instances)):
            for queue in peer.queues.values():
                for parcel in queue.remove(lambda parcel: parcel.batch is batch):
                    _settle_all(todo, parcel, ending)
            for path in peer.paths:
                todo.cancel += [each for each in path.attempts if each.parcel.batch is batch]
            _advance(peer, todo, now)
        return todo

    # -- broken paths -----------------------------------------------------------------

    def due(self, now: float) -> Todo:
        """Probes that are to be sent now."""
        todo = Todo()
        for path in self._broken:
            probe_at = path.breaker.probe_at
            if probe_at is not None and probe_at <= now:
                path.breaker.probe()
                todo.probe.append(path)
        return todo

    def next_due(self) -> float | None:
        due = [at for path in self._broken if (at := path.breaker.probe_at) is not None]
        return min(due, default=None)

    def probed(self, path: Path, status: SliceStatus, now: float) -> Todo:
        """Anything that the peer answers says that the path works."""
        todo = Todo()
        peer = self._peers.get(path.instance)
        if not _is_answer(status):
            path.breaker.probe_failed(now)
        elif peer is not None:
            self._answered(path)
            _advance(peer, todo, now)
        return todo

    # -- for tests --------------------------------------------------------------------

    def check_integrity(self) -> None:
        for instance, peer in self._peers.items():
            for path in peer.paths:
                path.check_integrity()
                assert path.instance == instance
                assert path.breaker.is_closed == (path not in self._broken)
            for location, queue in peer.queues.items():
                assert queue, "no queue is kept empty"
                for parcel in queue:
                    assert parcel.terms.location == location
                    assert parcel.instance == instance
                first = peer.choose(queue.first(), 0.0)
                assert first is not None, "nothing waits that no path is left for"
                assert first.attempts, "nothing waits for an idle path"

    # -- internal ---------------------------------------------------------------------

    def _try_again(
        self, peer: Peer, attempt: Attempt, statuses: Sequence[SliceStatus], now: float
    ) -> list[int]:
        """Positions of what waits for another path now."""
        parcel, path = attempt.parcel, attempt.path
        failed = [i for i, status in enumerate(statuses) if _may_go_again(parcel, status)]
        if not failed or path not in peer.paths:
            return []
        rest = parcel.again(failed, path.rail.name)
        if peer.choose(rest, now) is None:
            return []
        peer.put(rest)
        return failed

    def _judge(self, attempt: Attempt, statuses: Sequence[SliceStatus], now: float) -> None:
        """What the attempt says of its path."""
        path = attempt.path
        done = [i for i, status in enumerate(statuses) if status.state is SliceState.DONE]
        if done:
            requests = attempt.parcel.requests
            path.rate.moved(sum(requests[i].local.nbytes for i in done), now)
        if any(map(_is_answer, statuses)):
            self._answered(path)
        elif self._was_silent(attempt, statuses, now) or any(map(_is_of_link, statuses)):
            self._failed(path, now)

    def _was_silent(self, attempt: Attempt, statuses: Sequence[SliceStatus], now: float) -> bool:
        """It was given up after nothing had come by its path for long."""
        return (
            attempt.path.answers == attempt.answers_before
            and now - attempt.started >= self._limits.breaker.silent_seconds
            and all(map(_is_given_up, statuses))
        )

    def _answered(self, path: Path) -> None:
        path.answers += 1
        path.breaker.succeeded()
        self._broken.pop(path, None)

    def _failed(self, path: Path, now: float) -> None:
        path.breaker.failed(now)
        peer = self._peers.get(path.instance)
        if peer is not None and path in peer.paths and not path.breaker.is_closed:
            self._broken[path] = None


def _advance(peer: Peer, todo: Todo, now: float) -> None:
    """What waits goes, as far as there is room."""
    for location, queue in list(peer.queues.items()):
        while queue and _send(peer, queue.first(), todo, now):
            queue.take()
        if not queue:
            del peer.queues[location]


def _send(peer: Peer, parcel: Parcel, todo: Todo, now: float) -> bool:
    """Starts it, or ends it when no path is left for it; False: it has to wait for room."""
    path = peer.choose(parcel, now)
    if path is None:
        _settle_all(todo, parcel, _no_path(parcel.instance))
    elif path.has_room(parcel, now):
        todo.start.append(path.begin(parcel, now))
    else:
        return False
    return True


def _is_answer(status: SliceStatus) -> bool:
    return status.state is not SliceState.CANCELLED and status.code in _ANSWER_CODES


def _is_of_link(status: SliceStatus) -> bool:
    return status.code in _LINK_CODES


def _is_given_up(status: SliceStatus) -> bool:
    return status.state is SliceState.CANCELLED or status.code == "deadline"


def _may_go_again(parcel: Parcel, status: SliceStatus) -> bool:
    """Elsewhere. What was written may have arrived, and come again after later writes."""
    if not _is_of_link(status) or parcel.batch.ending is not None:
        return False
    return parcel.opcode is Opcode.READ or status.code == "unreachable"


def _settle_all(todo: Todo, parcel: Parcel, status: SliceStatus) -> None:
    count = len(parcel.indices)
    todo.settle.append(Settlement(parcel, range(count), [status] * count, None))


def _no_route(instance: str) -> SliceStatus:
    return SliceStatus(SliceState.FAILED, NoRoute(f"no route to {instance}").reason)


def _no_path(instance: str) -> SliceStatus:
    error = Unavailable(f"every path to {instance} failed lately; they are probed, retry later")
    return SliceStatus(SliceState.FAILED, error.reason)

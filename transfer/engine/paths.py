"""The ways to one peer, and which of them a parcel takes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..types import BatchId
from .breaker import Breaker
from .overtaking import Overtaking
from .parcels import Parcel
from .rate import Rate
from .types import EngineLimits, Location, Rail, RailRanks


@dataclass(slots=True, eq=False)
class Attempt:
    """A parcel under way on a path. `batch` is the rail's, once that has taken it."""

    parcel: Parcel
    path: Path
    started: float
    answers_before: int  # of the path
    batch: BatchId | None = None


class Path:
    """One rail to one peer: what it carries, how fast, and whether it works."""

    def __init__(self, instance: str, rail: Rail, limits: EngineLimits, rng: random.Random) -> None:
        self.instance = instance
        self.rail = rail
        self.breaker = Breaker(limits.breaker, rng)
        self.rate = Rate()
        self.answers = 0
        self.attempts: dict[Attempt, None] = {}
        self.in_flight_bytes = 0
        self._in_flight_slices = 0
        self._limits = limits

    def has_room(self, parcel: Parcel, now: float) -> bool:
        """For a parcel within the bounds, or any one at all. A slow path is given less at once:
        what it has cannot be overtaken."""
        limits = self._limits
        rate = self.rate.per_second(now)
        most = limits.path_bytes if rate is None else rate * limits.path_seconds
        return not self.attempts or (
            self.in_flight_bytes + parcel.num_bytes <= min(most, limits.path_bytes)
            and self._in_flight_slices + len(parcel.indices) <= limits.path_slices
        )

    def begin(self, parcel: Parcel, now: float) -> Attempt:
        if not self.attempts:
            self.rate.began(now)
        attempt = Attempt(parcel, self, now, self.answers)
        self.attempts[attempt] = None
        self.in_flight_bytes += parcel.num_bytes
        self._in_flight_slices += len(parcel.indices)
        return attempt

    def end(self, attempt: Attempt) -> None:
        del self.attempts[attempt]
        self.in_flight_bytes -= attempt.parcel.num_bytes
        self._in_flight_slices -= len(attempt.parcel.indices)

    def check_integrity(self) -> None:
        parcels = [attempt.parcel for attempt in self.attempts]
        assert self.in_flight_bytes == sum(parcel.num_bytes for parcel in parcels)
        assert self._in_flight_slices == sum(len(parcel.indices) for parcel in parcels)


class Peer:
    """What waits for one peer, and its paths. Memory of each location has a queue of its own, as
    it may want other rails."""

    def __init__(self, paths: Sequence[Path], ranks: RailRanks) -> None:
        self.paths = paths
        self.queues: dict[Location, Overtaking[Parcel]] = {}
        self._ranks = ranks

    def put(self, parcel: Parcel) -> None:
        location = parcel.terms.location
        queue = self.queues.get(location)
        if queue is None:
            queue = self.queues[location] = Overtaking(_priority_of, _bytes_of)
        queue.put(parcel)

    @property
    def is_reachable(self) -> bool:
        return any(path.breaker.is_closed for path in self.paths)

    def choose(self, parcel: Parcel, now: float) -> Path | None:
        """The path it is to take, which may have no room now; None: none is left. Of those of the
        best rank that work, the one where it would be over first."""
        paths = self.paths
        if len(paths) == 1:
            only = paths[0]
            return only if only.breaker.is_closed and not parcel.tried else None
        usable = [p for p in paths if p.breaker.is_closed and p.rail.name not in parcel.tried]
        if not usable:
            return None
        ranks = [self._rank(path, parcel.terms.location) for path in usable]
        best = min(ranks)
        equals = [path for path, rank in zip(usable, ranks, strict=True) if rank == best]
        return min(equals, key=_finish_of(equals, parcel, now))

    def _rank(self, path: Path, location: Location) -> int:
        groups = self._ranks.get(location, ())
        for rank, names in enumerate(groups):
            if path.rail.name in names:
                return rank
        return len(groups)


def _finish_of(paths: Sequence[Path], parcel: Parcel, now: float) -> Callable[[Path], float]:
    """Seconds until each would be through with the parcel; one that was not measured is taken to
    be as fast as the fastest."""
    rates = {path: path.rate.per_second(now) for path in paths}
    assumed = max((rate for rate in rates.values() if rate is not None), default=1.0)
    return lambda path: (path.in_flight_bytes + parcel.num_bytes) / (rates[path] or assumed)


def _priority_of(parcel: Parcel) -> int:
    return parcel.batch.priority


def _bytes_of(parcel: Parcel) -> int:
    return parcel.num_bytes

"""How long slices took, from submission to their end: counts in buckets, by what they were."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ..types import Opcode, SliceState, SliceStatus

BOUNDS_SECONDS = (0.0001, 0.00032, 0.001, 0.0032, 0.01, 0.032, 0.1, 0.32, 1.0, 3.2, 10.0)
"""Upper ends of the buckets; one more takes what is longer."""
NO_TRANSPORT = "none"
"""Of slices that no rail ever had."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Of one kind of slices, since the start. `counts`: one a bound and one beyond."""

    transport: str  # or NO_TRANSPORT
    opcode: str
    result: str
    counts: tuple[int, ...]
    total_seconds: float


_Kind = tuple[str, Opcode, SliceState]


class Latencies:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[_Kind, list[int]] = {}
        self._totals: dict[_Kind, float] = {}

    def add(
        self, transport: str, opcode: Opcode, statuses: Sequence[SliceStatus], seconds: float
    ) -> None:
        """Slices that ended together."""
        first = statuses[0].state
        if all(status.state is first for status in statuses):
            self._add((transport, opcode, first), seconds, len(statuses))
        else:
            for state, count in Counter(status.state for status in statuses).items():
                self._add((transport, opcode, state), seconds, count)

    def _add(self, kind: _Kind, seconds: float, num_slices: int) -> None:
        with self._lock:
            counts = self._counts.get(kind)
            if counts is None:
                counts = self._counts[kind] = [0] * (len(BOUNDS_SECONDS) + 1)
                self._totals[kind] = 0.0
            counts[bisect_left(BOUNDS_SECONDS, seconds)] += num_slices
            self._totals[kind] += seconds * num_slices

    def report(self) -> list[Latency]:
        with self._lock:
            return [
                Latency(
                    transport,
                    opcode.name.lower(),
                    result.value,
                    tuple(counts),
                    self._totals[transport, opcode, result],
                )
                for (transport, opcode, result), counts in self._counts.items()
            ]

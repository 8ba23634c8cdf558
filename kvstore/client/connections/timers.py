"""Things to do at a monotonic time, for one thread."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class Timer:
    """`cancel` makes it do nothing; it is then forgotten when its time comes."""

    __slots__ = ("act", "at")

    def __init__(self, at: float, act: Callable[[], None]) -> None:
        self.at = at
        self.act: Callable[[], None] | None = act

    def cancel(self) -> None:
        self.act = None


class Timers:
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()

    def call_at(self, at: float, act: Callable[[], None]) -> Timer:
        timer = Timer(at, act)
        heapq.heappush(self._heap, (at, next(self._order), timer))
        return timer

    def next_at(self) -> float | None:
        """When the next one is due; cancelled ones are dropped on the way."""
        while self._heap and self._heap[0][2].act is None:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def run_due(self, now: float) -> None:
        while self._heap and self._heap[0][0] <= now:
            act = heapq.heappop(self._heap)[2].act
            if act is not None:
                act()

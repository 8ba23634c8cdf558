"""What ends at a time: a heap with lazy deletion, never much longer than what it times."""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

_K = TypeVar("_K", int, bytes)
_SLACK = 64


class Expiry(Generic[_K]):
    """Deadlines (monotonic seconds) of keys; a key has one at most. `suspended` are seconds that
    the machine slept so far, which no monotonic clock counts: whoever tells them has them count."""

    def __init__(self) -> None:
        self.suspended = 0.0
        self._deadlines: dict[_K, float] = {}
        self._heap: list[tuple[float, _K]] = []

    def __len__(self) -> int:
        return len(self._deadlines)

    def set(self, key: _K, deadline: float) -> None:
        deadline += self.suspended
        self._deadlines[key] = deadline
        heapq.heappush(self._heap, (deadline, key))
        if len(self._heap) > 2 * len(self._deadlines) + _SLACK:
            self._heap = [(deadline, key) for key, deadline in self._deadlines.items()]
            heapq.heapify(self._heap)

    def discard(self, key: _K) -> None:
        self._deadlines.pop(key, None)

    def clear(self) -> None:
        self._deadlines.clear()
        self._heap.clear()

    def is_due(self, now: float) -> bool:
        """May be true for a deadline that was discarded."""
        return bool(self._heap) and self._heap[0][0] <= now + self.suspended

    def left(self, key: _K, now: float) -> float | None:
        """Seconds until its deadline; None without one."""
        deadline = self._deadlines.get(key)
        return None if deadline is None else max(deadline - now - self.suspended, 0.0)

    def has_passed(self, key: _K, now: float) -> bool:
        deadline = self._deadlines.get(key)
        return deadline is not None and deadline <= now + self.suspended

    def pop_due(self, now: float, limit: int) -> list[_K]:
        """At most `limit` keys whose deadline is not after `now`; each is forgotten."""
        due: list[_K] = []
        now += self.suspended
        while self._heap and self._heap[0][0] <= now and len(due) < limit:
            deadline, key = heapq.heappop(self._heap)
            if self._deadlines.get(key) == deadline:
                del self._deadlines[key]
                due.append(key)
        return due

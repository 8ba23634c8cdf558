"""A queue where the more urgent goes first, and the less urgent goes all the same."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")

PATIENCE_BYTES = 64 << 20
"""May overtake those of one priority before the first of them has its turn."""
LEAST_WEIGHT = 64 << 10
"""Of one item, however few bytes it has."""


class Overtaking(Generic[ItemT]):
    """By `priority_of` (smaller goes first), in order of arrival within one. Whatever waits has its
    turn after at most PATIENCE_BYTES of more urgent items."""

    def __init__(
        self, priority_of: Callable[[ItemT], int], bytes_of: Callable[[ItemT], int]
    ) -> None:
        self._priority_of = priority_of
        self._bytes_of = bytes_of
        self._lanes: dict[int, deque[ItemT]] = {}  # none is empty
        self._overtaken: dict[int, int] = {}  # bytes, since the lane's last turn

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def __iter__(self) -> Iterator[ItemT]:
        for priority in sorted(self._lanes):
            yield from self._lanes[priority]

    def put(self, item: ItemT) -> None:
        self._lanes.setdefault(self._priority_of(item), deque()).append(item)

    def first(self) -> ItemT:
        """What `take` would take. There must be something."""
        return self._lanes[self._next()][0]

    def take(self) -> ItemT:
        priority = self._next()
        item = self._lanes[priority].popleft()
        weight = max(self._bytes_of(item), LEAST_WEIGHT)
        self._overtaken[priority] = 0
        for later in self._lanes:
            if later > priority:
                self._overtaken[later] = self._overtaken.get(later, 0) + weight
        self._tidy(priority)
        return item

    def remove(self, is_unwanted: Callable[[ItemT], bool]) -> list[ItemT]:
        removed = [item for item in self if is_unwanted(item)]
        for priority in {self._priority_of(item) for item in removed}:
            lane = self._lanes[priority]
            self._lanes[priority] = deque(item for item in lane if not is_unwanted(item))
            self._tidy(priority)
        return removed

    def _next(self) -> int:
        urgent = min(self._lanes)
        if len(self._lanes) == 1:
            return urgent
        waited = max(self._lanes, key=lambda priority: self._overtaken.get(priority, 0))
        return waited if self._overtaken.get(waited, 0) >= PATIENCE_BYTES else urgent

    def _tidy(self, priority: int) -> None:
        if not self._lanes[priority]:
            del self._lanes[priority]
            self._overtaken.pop(priority, None)

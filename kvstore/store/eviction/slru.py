"""Segmented LRU by bytes.

probation ──hit──► protected, a share of the bytes; what falls out of it is probation's newest
again. Victims: probation's coldest, then protected's, then soft-pinned ones.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from .links import OUT, Links, Queue

PROBATION, PROTECTED, SOFT = 1, 2, 3


class SlruPolicy:
    """`protected_ratio` is protected's share of the arena; 0 makes it plain LRU."""

    def __init__(self, links: Links, protected_ratio: float) -> None:
        self._queue = links.queue
        self._protected_ratio = protected_ratio
        self._probation = Queue(links, PROBATION)
        self._protected = Queue(links, PROTECTED)
        self._soft = Queue(links, SOFT)
        self._queues = (self._probation, self._protected, self._soft)
        self.capacity_bytes = 0

    def insert(self, slot: int) -> None:
        self._probation.push(slot)

    def insert_many(self, slots: NDArray[np.int64]) -> None:
        if len(slots):
            self._probation.push_many(slots)

    def insert_used(self, slot: int) -> None:
        self._protected.push(slot)
        self._demote()

    def insert_soft(self, slot: int) -> None:
        self._soft.push(slot)

    def touch(self, slot: int) -> None:
        index = self._queue[slot]
        if index == OUT:
            return
        self._queues[index - 1].unlink(slot)
        if index == SOFT:
            self._soft.push(slot)
        else:
            self.insert_used(slot)

    def refresh(self, slot: int) -> None:
        """Newest of its queue."""
        index = self._queue[slot]
        if index != OUT and self._queues[index - 1].hottest != slot:
            queue = self._queues[index - 1]
            queue.unlink(slot)
            queue.push(slot)

    def remove(self, slot: int) -> None:
        index = self._queue[slot]
        if index != OUT:
            self._queues[index - 1].unlink(slot)

    def coldest(self) -> int:
        return self._probation.coldest or self._protected.coldest or self._soft.coldest

    def __iter__(self) -> Iterator[int]:
        for queue in self._queues:
            yield from queue

    def clear(self) -> None:
        for queue in self._queues:
            queue.clear()

    def check_integrity(self) -> list[str]:
        return [difference for queue in self._queues for difference in queue.check_integrity()]

    def _demote(self) -> None:
        limit = self._protected_ratio * self.capacity_bytes
        while self._protected.num_bytes > limit and self._protected.coldest:
            slot = self._protected.coldest
            self._protected.unlink(slot)
            self._probation.push(slot)

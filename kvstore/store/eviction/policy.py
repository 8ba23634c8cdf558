"""What every eviction policy promises, and what those made of queues have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..slot_table import NO_SLOT
from .links import OUT, Links, Queue, Slots

SOFT_WORTH = 1e9
"""A soft pin's weight: more than all others of a pool together."""


class EvictionPolicy(Protocol):
    """The order in which one arena's evictable entries (committed and unpinned) go. It never drops
    anything itself: its user removes the victim. Entries inserted as soft go last. Every call but
    `clear`, iteration, check and those for many takes a bounded number of steps, amortised."""

    capacity_bytes: int
    """Of the arena, which sets it."""

    def insert(self, slot: int) -> None:
        """A new entry. If it is a block, its chain links are set, those of its children too."""

    def insert_many(self, slots: Slots) -> None:
        """As `insert` of each in this order."""

    def insert_used(self, slot: int) -> None:
        """One that was in use until now (unpinned)."""

    def insert_soft(self, slot: int) -> None:
        """One that is to be evicted last."""

    def touch(self, slot: int) -> None:
        """It was hit. Nothing happens to one that is not evictable now (as in the next two)."""

    def touch_many(self, slots: Sequence[int]) -> None:
        """As `touch` of each in this order."""

    def refresh(self, slot: int) -> None:
        """What depends on it was stored: it is to stay as long as that."""

    def remove(self, slot: int) -> None:
        """It is pinned or dropped."""

    def remove_many(self, slots: Sequence[int]) -> None:
        """As `remove` of each; all of them wait."""

    def coldest(self) -> int:
        """The next victim, or NO_SLOT."""

    def __iter__(self) -> Iterator[int]:
        """All of them, in the order they would go if nothing else happened."""

    def worth(self, slots: NDArray[np.int64]) -> NDArray[np.float64]:
        """What a byte of each is worth keeping, roughly in the policy's order, so that runs of
        neighbours can be compared by their sums."""

    def clear(self) -> None:
        """Forgets all of them; the caller resets their links."""

    def check_integrity(self) -> list[str]:
        """Differences between its links and its accounts."""


class QueuePolicy:
    """Victims come from the first of `weights` queues that is not empty, the soft-pinned ones'
    last. A queue's weight says how much more its entries are worth than others as idle."""

    def __init__(self, links: Links, weights: list[float]) -> None:
        self._links = links
        self._queue = links.queue
        self._queues = [Queue(links, index + 1) for index in range(len(weights) + 1)]
        self._soft = self._queues[-1]
        self._weights = np.array([0.0, *weights, SOFT_WORTH])
        self.capacity_bytes = 0

    def insert(self, slot: int) -> None:
        self._queues[0].push(slot)

    def insert_many(self, slots: Slots) -> None:
        for slot in np.asarray(slots).tolist():
            self.insert(slot)

    def insert_used(self, slot: int) -> None:
        self.insert(slot)

    def insert_soft(self, slot: int) -> None:
        self._soft.push(slot)

    def touch(self, slot: int) -> None:
        queue = self._queue_of(slot)
        if queue is not None:
            queue.unlink(slot)
            if queue is self._soft:
                self.insert_soft(slot)
            else:
                self.insert_used(slot)

    def touch_many(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self.touch(slot)

    def refresh(self, slot: int) -> None:
        """Newest of its queue."""
        queue = self._queue_of(slot)
        if queue is not None and queue.hottest != slot:
            queue.unlink(slot)
            queue.push(slot)

    def remove(self, slot: int) -> None:
        queue = self._queue_of(slot)
        if queue is not None:
            queue.unlink(slot)

    def remove_many(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._queues[self._queue[slot] - 1].unlink(slot)

    def coldest(self) -> int:
        for queue in self._queues:
            if queue.coldest:
                return queue.coldest
        return NO_SLOT

    def __iter__(self) -> Iterator[int]:
        for queue in self._queues:
            yield from queue

    def worth(self, slots: NDArray[np.int64]) -> NDArray[np.float64]:
        weights = self._weights[np.frombuffer(self._queue, np.uint8)[slots]]
        idle = self._links.idle_many(slots)
        return np.where(weights == SOFT_WORTH, weights, weights / (1.0 + idle))

    def clear(self) -> None:
        for queue in self._queues:
            queue.clear()

    def check_integrity(self) -> list[str]:
        return [difference for queue in self._queues for difference in queue.check_integrity()]

    def _queue_of(self, slot: int) -> Queue | None:
        index = self._queue[slot]
        return None if index == OUT else self._queues[index - 1]

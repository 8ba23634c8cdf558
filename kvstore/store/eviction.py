"""Which entry goes first: the order of what one arena could evict (committed and unpinned).

slru   probation ──hit──► protected, a share of the bytes; what falls out of it is probation's
       newest again. Victims: probation's coldest, then protected's, then soft-pinned ones.
lru    the same with an empty protected part.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from ..slots import LENGTH, WORDS
from .slot_table import NO_SLOT

OUT, PROBATION, PROTECTED, SOFT = range(4)
"""Values of the queue column: not evictable (OUT) or where a slot waits."""


class Links:
    """Columns that all policies of a pool share: a slot is in one queue of one policy at most."""

    def __init__(self, words: memoryview) -> None:
        self.words = words
        self.colder = array("I")
        self.hotter = array("I")
        self.queue = array("B")

    def columns(self) -> tuple[array[int], ...]:
        return self.colder, self.hotter, self.queue


class _Queue:
    __slots__ = ("coldest", "hottest", "num_bytes")

    def __init__(self) -> None:
        self.coldest = self.hottest = NO_SLOT
        self.num_bytes = 0


class SlruPolicy:
    """Segmented LRU by bytes. `protected_ratio` 0 makes it plain LRU. `capacity_bytes` is the
    arena's, which sets it. Every call but `clear`, iteration and check is O(1)."""

    def __init__(self, links: Links, protected_ratio: float) -> None:
        self._words = links.words
        self._colder, self._hotter, self._queue = links.columns()
        self._protected_ratio = protected_ratio
        self.clear()
        self.capacity_bytes = 0

    def clear(self) -> None:
        """Forgets all of them; the caller resets their links."""
        self._queues = (_Queue(), _Queue(), _Queue(), _Queue())

    def insert(self, slot: int) -> None:
        """A new entry."""
        self._push(slot, PROBATION)

    def insert_used(self, slot: int) -> None:
        """One that was in use until now (unpinned)."""
        self._push(slot, PROTECTED)
        self._demote()

    def insert_soft(self, slot: int) -> None:
        """One that is to be evicted last."""
        self._push(slot, SOFT)

    def touch(self, slot: int) -> None:
        """It was hit. Nothing happens to one that is not evictable now (as in the next two)."""
        index = self._queue[slot]
        if index == OUT:
            return
        self._unlink(slot, index)
        if index == SOFT:
            self.insert_soft(slot)
        else:
            self.insert_used(slot)

    def refresh(self, slot: int) -> None:
        """What depends on it was stored: newest of its queue."""
        index = self._queue[slot]
        if index != OUT and self._queues[index].hottest != slot:
            self._unlink(slot, index)
            self._push(slot, index)

    def remove(self, slot: int) -> None:
        """It is pinned or dropped."""
        index = self._queue[slot]
        if index != OUT:
            self._unlink(slot, index)

    def coldest(self) -> int:
        """The next victim, or NO_SLOT."""
        _, probation, protected, soft = self._queues
        return probation.coldest or protected.coldest or soft.coldest

    def __iter__(self) -> Iterator[int]:
        """All of them, coldest first."""
        for queue in self._queues:
            slot = queue.coldest
            while slot:
                following = self._hotter[slot]
                yield slot
                slot = following

    def check_integrity(self) -> list[str]:
        """Differences between its links and its accounts."""
        differences = []
        for index, queue in enumerate(self._queues):
            num_bytes, before, slot = 0, NO_SLOT, queue.coldest
            while slot:
                if self._queue[slot] != index or self._colder[slot] != before:
                    differences.append(f"slot {slot} is linked wrongly in queue {index}")
                num_bytes += self._words[slot * WORDS + LENGTH]
                before, slot = slot, self._hotter[slot]
            if num_bytes != queue.num_bytes or queue.hottest != before:
                differences.append(f"queue {index} holds {num_bytes}, accounts {queue.num_bytes}")
        return differences

    def _demote(self) -> None:
        protected = self._queues[PROTECTED]
        limit = self._protected_ratio * self.capacity_bytes
        while protected.num_bytes > limit and protected.coldest:
            slot = protected.coldest
            self._unlink(slot, PROTECTED)
            self._push(slot, PROBATION)

    def _push(self, slot: int, index: int) -> None:
        queue = self._queues[index]
        self._queue[slot] = index
        newest = queue.hottest
        self._colder[slot] = newest
        self._hotter[slot] = NO_SLOT
        if newest:
            self._hotter[newest] = slot
        else:
            queue.coldest = slot
        queue.hottest = slot
        queue.num_bytes += self._words[slot * WORDS + LENGTH]

    def _unlink(self, slot: int, index: int) -> None:
        queue = self._queues[index]
        colder, hotter = self._colder[slot], self._hotter[slot]
        if colder:
            self._hotter[colder] = hotter
        else:
            queue.coldest = hotter
        if hotter:
            self._colder[hotter] = colder
        else:
            queue.hottest = colder
        self._queue[slot] = OUT
        queue.num_bytes -= self._words[slot * WORDS + LENGTH]

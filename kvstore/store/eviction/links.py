"""Queues over slots: intrusive links in columns that all policies of a pool share."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ...slots import LENGTH, WORDS
from ..slot_table import NO_SLOT

OUT = 0
"""In the queue column: the slot waits in no queue, so it cannot be evicted."""


class Links:
    """Columns as long as the slot table: a slot is in one queue of one policy at most. `queue` is
    that queue's index, from 1 on."""

    def __init__(self, words: memoryview) -> None:
        self.words = words
        self.colder = array("I")
        self.hotter = array("I")
        self.queue = array("B")

    def columns(self) -> tuple[array[int], ...]:
        return self.colder, self.hotter, self.queue


class Queue:
    """A list of slots from coldest to hottest, with the bytes of their entries."""

    __slots__ = (
        "_colder",
        "_hotter",
        "_index",
        "_queue",
        "_words",
        "coldest",
        "hottest",
        "num_bytes",
    )

    def __init__(self, links: Links, index: int) -> None:
        self._words = links.words
        self._colder, self._hotter, self._queue = links.columns()
        self._index = index
        self.coldest = self.hottest = NO_SLOT
        self.num_bytes = 0

    def push(self, slot: int) -> None:
        """Becomes the hottest; must be in no queue."""
        newest = self.hottest
        self._queue[slot] = self._index
        self._colder[slot] = newest
        self._hotter[slot] = NO_SLOT
        if newest:
            self._hotter[newest] = slot
        else:
            self.coldest = slot
        self.hottest = slot
        self.num_bytes += self._words[slot * WORDS + LENGTH]

    def push_many(self, slots: NDArray[np.int64]) -> None:
        """As `push` of each, by columns; at least one, none twice."""
        first, last, newest = int(slots[0]), int(slots[-1]), self.hottest
        colder, hotter = (np.frombuffer(c, np.uint32) for c in (self._colder, self._hotter))
        np.frombuffer(self._queue, np.uint8)[slots] = self._index
        colder[slots[1:]] = slots[:-1]
        hotter[slots[:-1]] = slots[1:]
        colder[first], hotter[last] = newest, NO_SLOT
        if newest:
            hotter[newest] = first
        else:
            self.coldest = first
        self.hottest = last
        lengths = np.frombuffer(self._words, np.uint64)[slots * WORDS + LENGTH]
        self.num_bytes += int(lengths.sum())

    def unlink(self, slot: int) -> None:
        """Takes out a slot of this queue."""
        colder, hotter = self._colder[slot], self._hotter[slot]
        if colder:
            self._hotter[colder] = hotter
        else:
            self.coldest = hotter
        if hotter:
            self._colder[hotter] = colder
        else:
            self.hottest = colder
        self._queue[slot] = OUT
        self.num_bytes -= self._words[slot * WORDS + LENGTH]

    def clear(self) -> None:
        """Forgets all; the caller resets their links."""
        self.coldest = self.hottest = NO_SLOT
        self.num_bytes = 0

    def __iter__(self) -> Iterator[int]:
        """Coldest first."""
        slot = self.coldest
        while slot:
            following = self._hotter[slot]
            yield slot
            slot = following

    def check_integrity(self) -> list[str]:
        """Differences between links and accounts."""
        differences = []
        num_bytes, before = 0, NO_SLOT
        for slot in self:
            if self._queue[slot] != self._index or self._colder[slot] != before:
                differences.append(f"slot {slot} is linked wrongly in queue {self._index}")
            num_bytes += self._words[slot * WORDS + LENGTH]
            before = slot
        if num_bytes != self.num_bytes or self.hottest != before:
            differences.append(f"queue {self._index} holds {num_bytes}, accounts {self.num_bytes}")
        return differences

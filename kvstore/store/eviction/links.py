"""Queues over slots: intrusive links in columns that all policies of a pool share."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ...slots import LENGTH, WORDS
from ..chains import Chains
from ..slot_table import NO_SLOT

OUT = 0
"""In the queue column: the slot waits in no queue, so it cannot be evicted."""
LEAST_COLUMNS = 96
"""Slots from which on numpy pays."""
_WRAP = 0xFFFFFFFF
Slots = Sequence[int] | NDArray[np.int64]


class Links:
    """Columns as long as the slot table: a slot is in one queue of one policy at most. `queue` is
    that queue's index, from 1 on; `stamp` the count of pushes when it came there; `marks` what its
    policy keeps of it, pinned or not."""

    def __init__(self, words: memoryview, chains: Chains) -> None:
        self.words = words
        self.chains = chains
        self.colder = array("I")
        self.hotter = array("I")
        self.queue = array("B")
        self.stamp = array("I")
        self.marks = array("B")
        self.pushes = 0

    def columns(self) -> tuple[array[int], ...]:
        return self.colder, self.hotter, self.queue, self.stamp, self.marks

    def idle(self, slot: int) -> int:
        """Pushes since the slot came into its queue: a clock that runs as fast as the pool
        changes. It wraps: what idles through 4e9 pushes looks young once more."""
        return (self.pushes - self.stamp[slot]) & _WRAP

    def idle_many(self, slots: NDArray[np.int64]) -> NDArray[np.float64]:
        stamps = np.frombuffer(self.stamp, np.uint32)[slots].astype(np.int64)
        return ((self.pushes - stamps) & _WRAP).astype(np.float64)


class Queue:
    """A list of slots from coldest to hottest, with the bytes of their entries."""

    __slots__ = (
        "_colder",
        "_hotter",
        "_links",
        "_queue",
        "_stamp",
        "_words",
        "coldest",
        "hottest",
        "index",
        "num_bytes",
    )

    def __init__(self, links: Links, index: int) -> None:
        self._links = links
        self._words = links.words
        self._colder, self._hotter, self._queue, self._stamp, _ = links.columns()
        self.index = index
        self.clear()

    def clear(self) -> None:
        """Forgets all; the caller resets their links."""
        self.coldest = self.hottest = NO_SLOT
        self.num_bytes = 0

    def push(self, slot: int) -> None:
        """Becomes the hottest; must be in no queue."""
        newest, links = self.hottest, self._links
        links.pushes += 1
        self._stamp[slot] = links.pushes & _WRAP
        self._queue[slot] = self.index
        self._colder[slot] = newest
        self._hotter[slot] = NO_SLOT
        if newest:
            self._hotter[newest] = slot
        else:
            self.coldest = slot
        self.hottest = slot
        self.num_bytes += self._words[slot * WORDS + LENGTH]

    def push_many(self, slots: Slots) -> None:
        """As `push` of each; none twice."""
        if len(slots) >= LEAST_COLUMNS:
            self._push_columns(np.asarray(slots))
        elif len(slots):
            self._push_few(slots if isinstance(slots, Sequence) else slots.tolist())

    def _push_few(self, slots: Sequence[int]) -> None:
        """At least one."""
        colder, hotter, queue, stamp = self._colder, self._hotter, self._queue, self._stamp
        words, index, pushes, newest = self._words, self.index, self._links.pushes, self.hottest
        num_bytes = 0
        for slot in slots:
            pushes += 1
            stamp[slot] = pushes & _WRAP
            queue[slot] = index
            colder[slot] = newest
            if newest:
                hotter[newest] = slot
            else:
                self.coldest = slot
            newest = slot
            num_bytes += words[slot * WORDS + LENGTH]
        hotter[newest] = NO_SLOT
        self._links.pushes, self.hottest = pushes, newest
        self.num_bytes += num_bytes

    def _push_columns(self, slots: NDArray[np.int64]) -> None:
        first, last, newest = int(slots[0]), int(slots[-1]), self.hottest
        colder, hotter, stamp = (
            np.frombuffer(column, np.uint32) for column in (self._colder, self._hotter, self._stamp)
        )
        stamps = np.arange(self._links.pushes + 1, self._links.pushes + 1 + len(slots))
        stamp[slots] = (stamps & _WRAP).astype(np.uint32)
        self._links.pushes += len(slots)
        np.frombuffer(self._queue, np.uint8)[slots] = self.index
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

    def attract(self, slots: Iterable[int], queues: Sequence[Queue]) -> None:
        """Each in turn becomes the hottest here, from whichever of `queues` (all of one policy, in
        order) it waits in."""
        colder, hotter, queue, stamp = self._colder, self._hotter, self._queue, self._stamp
        links, words, index = self._links, self._words, self.index
        pushes, newest = links.pushes, self.hottest
        for slot in slots:
            pushes += 1
            stamp[slot] = pushes & _WRAP
            if slot == newest:
                continue
            source, before, after = queues[queue[slot] - 1], colder[slot], hotter[slot]
            if before:
                hotter[before] = after
            else:
                source.coldest = after
            if after:
                colder[after] = before
            else:
                source.hottest = before
            if source is not self:
                queue[slot] = index
                length = words[slot * WORDS + LENGTH]
                source.num_bytes -= length
                self.num_bytes += length
            colder[slot], hotter[slot] = newest, NO_SLOT
            if newest:
                hotter[newest] = slot
            else:
                self.coldest = slot
            newest = slot
        links.pushes, self.hottest = pushes, newest

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

    def __iter__(self) -> Iterator[int]:
        """Coldest first."""
        return self.after(self.coldest)

    def after(self, slot: int) -> Iterator[int]:
        """From this slot of the queue (NO_SLOT: none) to the hottest."""
        while slot:
            following = self._hotter[slot]
            yield slot
            slot = following

    def check_integrity(self) -> list[str]:
        """Differences between links and accounts."""
        slots = np.fromiter(self, np.int64)
        before = np.append(NO_SLOT, slots)[:-1]
        queue, colder = np.frombuffer(self._queue, np.uint8), np.frombuffer(self._colder, np.uint32)
        is_wrong = (queue[slots] != self.index) | (colder[slots] != before)
        differences = [
            f"slot {slot} is linked wrongly in queue {self.index}"
            for slot in slots[is_wrong].tolist()
        ]
        rows = np.frombuffer(self._words, np.uint64).reshape(-1, WORDS)
        num_bytes = int(rows[slots, LENGTH].sum())
        hottest = slots[-1] if len(slots) else NO_SLOT
        if num_bytes != self.num_bytes or self.hottest != hottest:
            differences.append(f"queue {self.index} holds {num_bytes}, accounts {self.num_bytes}")
        return differences

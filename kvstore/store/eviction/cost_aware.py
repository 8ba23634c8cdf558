"""Evicts what is expected to save the least prefill time a byte (docs/adr/0016).

    saved seconds a byte = chance of reuse × seconds to compute it again ÷ bytes ÷ time idle

Seconds to compute a block again grow with its depth, since attention looks at all before it. The
chance that something comes back soon falls with the time it has idled; how high it is to begin
with is learned, apart for two kinds of new entries:

    ends       blocks nothing was stored after: the last of a request, often only half the
               user's and never asked for again
    ordinary   everything else, and what falls out of protected

What is hit goes to protected, a share of the bytes, as in slru. Where ends are as good as others,
this is slru.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from .chance import Chance
from .links import LEAST_COLUMNS, OUT, Links, Queue, Slots
from .slru import SlruPolicy

COST_GROWTH = 1 / 1250
"""How much more a block costs for each block before it: 7.19e-10·2·64 over 1.146e-4 s a token, the
prefill of a 70B model (Mooncake, FAST'25, Fig. 14a) in blocks of 64 tokens."""
SAMPLED = 16
"""Every so many-th end waits among the ordinary ones: only what lives as long can be compared."""
NOTHING, NEW, SAMPLE = range(3)
"""Marks: how an entry that was never hit is counted."""


class CostAwarePolicy(SlruPolicy):
    """Chances are each arena's own: its writer's requests are alike."""

    def __init__(self, links: Links, protected_ratio: float) -> None:
        super().__init__(links, protected_ratio)
        self._marks = links.marks
        self._chains = links.chains
        self._ends = Queue(links, len(self._queues) + 1)
        self._queues.append(self._ends)
        self._weights = np.append(self._weights, 1.0)
        self._ordinary_chance = Chance()
        self._end_chance = Chance()
        self._num_ends = 0

    def insert(self, slot: int) -> None:
        if not self._chains.is_end(slot):
            self._marks[slot] = NEW
            self._ordinary_chance.count(1)
            self._probation.push(slot)
            return
        self._num_ends += 1
        if self._num_ends % SAMPLED == 0:
            self._marks[slot] = SAMPLE
            self._end_chance.count(1)
            self._probation.push(slot)
        else:
            self._marks[slot] = NOTHING
            self._ends.push(slot)

    def insert_many(self, slots: Slots) -> None:
        """Ends come first: they are colder than what they end."""
        if len(slots) < LEAST_COLUMNS:
            super(SlruPolicy, self).insert_many(slots)
            return
        slots = np.asarray(slots)
        are_ends = self._chains.are_ends(slots)
        for slot in slots[are_ends].tolist():
            self.insert(slot)
        others = slots[~are_ends]
        np.frombuffer(self._marks, np.uint8)[others] = NEW
        self._ordinary_chance.count(len(others))
        self._probation.push_many(others)

    def insert_used(self, slot: int) -> None:
        self._count_hit(slot)
        super().insert_used(slot)

    def touch_many(self, slots: Sequence[int]) -> None:
        for slot in slots:
            if self._marks[slot] and self._queue[slot] not in (OUT, self._soft.index):
                self._count_hit(slot)
        super().touch_many(slots)

    def _count_hit(self, slot: int) -> None:
        mark = self._marks[slot]
        if mark == NEW:
            self._ordinary_chance.hit()
        elif mark == SAMPLE:
            self._end_chance.hit()
        self._marks[slot] = NOTHING

    def refresh(self, slot: int) -> None:
        """An end that something was stored after is none."""
        queue = self._queue_of(slot)
        if queue is self._ends:
            self._ends.unlink(slot)
            self._probation.push(slot)
            return
        if queue is not None and self._marks[slot] == SAMPLE:
            self._end_chance.count(-1)
            self._marks[slot] = NOTHING
        super().refresh(slot)

    def coldest(self) -> int:
        end, other = self._ends.coldest, self._probation.coldest
        if end and other:
            return self._colder_of(end, other)
        return end or other or self._protected.coldest or self._soft.coldest

    def __iter__(self) -> Iterator[int]:
        ends, others = iter(self._ends), iter(self._probation)
        end, other = next(ends, None), next(others, None)
        while end is not None and other is not None:
            colder = self._colder_of(end, other)
            yield colder
            if colder == end:
                end = next(ends, None)
            else:
                other = next(others, None)
        for slot, rest in ((end, ends), (other, others)):
            if slot is not None:
                yield slot
            yield from rest
        yield from self._protected
        yield from self._soft

    def worth(self, slots: NDArray[np.int64]) -> NDArray[np.float64]:
        ordinary = self._ordinary_chance.estimate()
        self._weights[-1] = self._end_chance.estimate(ordinary) / ordinary
        depths = np.frombuffer(self._chains.depth, np.uint16)[slots]
        return super().worth(slots) * (1.0 + COST_GROWTH * depths)

    def _colder_of(self, end: int, other: int) -> int:
        ordinary = self._ordinary_chance.estimate()
        end_score = self._saved(end) * self._end_chance.estimate(ordinary)
        return end if end_score < self._saved(other) * ordinary else other

    def _saved(self, slot: int) -> float:
        """Seconds a byte, in units of an ordinary first block's, if it is reused."""
        return (1.0 + COST_GROWTH * self._chains.depth[slot]) / (1.0 + self._links.idle(slot))

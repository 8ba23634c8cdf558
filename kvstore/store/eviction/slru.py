"""Segmented LRU by bytes (Karedla, Love, Wherry 1994).

    probation ──hit──► protected, a share of the bytes; what falls out of it is probation's newest
        ▲                  │      again, and so is what nobody hits for long
        └──────────────────┘

Victims: probation's coldest, then protected's, then soft-pinned ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from .links import OUT, Links, Slots
from .policy import QueuePolicy

PROTECTED_WEIGHT = 2.0
"""A protected entry has its time in probation still before it."""
PATIENCE = 16
"""How many times as long as probation's victims a protected entry may idle. Without it, entries
hit twice on one day keep their place until as many others are hit twice."""


class SlruPolicy(QueuePolicy):
    """`protected_ratio` is protected's share of the arena."""

    def __init__(self, links: Links, protected_ratio: float) -> None:
        super().__init__(links, [1.0, PROTECTED_WEIGHT])
        self._protected_ratio = protected_ratio
        self._probation, self._protected, _ = self._queues

    def insert_many(self, slots: Slots) -> None:
        self._probation.push_many(slots)

    def insert_used(self, slot: int) -> None:
        self._protected.push(slot)
        self._shrink()

    def touch_many(self, slots: Sequence[int]) -> None:
        """Protected is as small as it has to be once all are in it."""
        others = OUT, self._soft.index
        plain = [slot for slot in slots if self._queue[slot] not in others]
        if len(plain) < len(slots):
            self._soft.attract([s for s in slots if self._queue[s] == others[1]], self._queues)
        self._protected.attract(plain, self._queues)
        self._shrink()

    def _shrink(self) -> None:
        limit = self._protected_ratio * self.capacity_bytes
        while self._protected.num_bytes > limit and self._protected.coldest:
            self._demote(self._protected.coldest)

    def remove(self, slot: int) -> None:
        if slot == self._probation.coldest:
            self._age(self._links.idle(slot))
        super().remove(slot)

    def remove_many(self, slots: Sequence[int]) -> None:
        """Protected ages as by one of them."""
        if self._probation.coldest in slots:
            self._age(self._links.idle(self._probation.coldest))
        super().remove_many(slots)

    def _age(self, idle: int) -> None:
        """Probation's victims go after so long."""
        oldest = self._protected.coldest
        if oldest and self._links.idle(oldest) > PATIENCE * idle:
            self._demote(oldest)

    def _demote(self, slot: int) -> None:
        self._protected.unlink(slot)
        self._probation.push(slot)

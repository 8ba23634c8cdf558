"""SIEVE (Zhang et al., NSDI 2024): a queue in order of insertion and a hand that walks it from the
oldest on, spares what was hit since it last came by, and takes the first that was not. For
comparison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..slot_table import NO_SLOT
from .links import Links
from .policy import QueuePolicy


class SievePolicy(QueuePolicy):
    """What was pinned comes back as newest, and spared. `coldest` moves the hand: as many steps in
    all as there were hits."""

    def __init__(self, links: Links) -> None:
        super().__init__(links, [1.0])
        self._hotter = links.hotter
        self._spared = links.marks
        self._line = self._queues[0]
        self._hand = NO_SLOT  # where the search goes on; NO_SLOT: at the oldest

    def insert(self, slot: int) -> None:
        self._spared[slot] = 0
        self._line.push(slot)

    def insert_used(self, slot: int) -> None:
        self._spared[slot] = 1
        self._line.push(slot)

    def touch(self, slot: int) -> None:
        self._spared[slot] = 1

    def refresh(self, slot: int) -> None:
        """Does not matter."""

    def remove(self, slot: int) -> None:
        if slot == self._hand:
            self._hand = self._hotter[slot]
        super().remove(slot)

    def remove_many(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self.remove(slot)

    def coldest(self) -> int:
        if not self._line.coldest:
            return self._soft.coldest
        slot = self._hand or self._line.coldest
        while self._spared[slot]:
            self._spared[slot] = 0
            slot = self._hotter[slot] or self._line.coldest
        self._hand = slot
        return slot

    def __iter__(self) -> Iterator[int]:
        """Two rounds of the hand: the first takes what is not spared, the second the rest."""
        start = self._hand or self._line.coldest
        yield from (slot for slot in self._round(start) if not self._spared[slot])
        yield from (slot for slot in self._round(start) if self._spared[slot])
        yield from self._soft

    def _round(self, start: int) -> Iterator[int]:
        """From there on until it would come by again."""
        yield from self._line.after(start)
        slot = self._line.coldest
        while slot != start:
            yield slot
            slot = self._hotter[slot]

    def clear(self) -> None:
        super().clear()
        self._hand = NO_SLOT

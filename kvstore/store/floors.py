"""Floors of namespaces: one step makes everything that a namespace holds a miss, whatever its size.

Entries carry the edition of their namespace (namespaces.py). Raising the floor gives the namespace
another one and retires the old: what carries that is found by nobody from this moment on, may be
replaced, and is swept in the background, a part of the slots at a time.

    edition  current ──raise──► retired ──no slot carries it──► spare
"""

from __future__ import annotations

import numpy as np

from ..slots import HEAD, SlotState
from .catalog import DEAD
from .entries import DropReason, Entries
from .namespaces import Namespaces, OpenNamespace
from .reservations import Reservations

SWEPT_SLOTS = 1 << 16
"""Looked at in one step: their columns take well under a millisecond."""
SWEPT_ENTRIES = 1 << 11
"""Dropped in one step: milliseconds' work."""


class Floors:
    """Works on the catalog that it is given."""

    def __init__(
        self, entries: Entries, reservations: Reservations, namespaces: Namespaces
    ) -> None:
        self._entries = entries
        self._catalog = entries.catalog
        self._reservations = reservations
        self._namespaces = namespaces
        self._next_slot = 1
        self._carried: set[int] = set()  # retired editions met since the first slot
        self._retired_at_start: set[int] = set()  # of the pass under way

    def raise_floor(self, opened: OpenNamespace) -> None:
        """Does not look at what is stored; what is being written ends with its commit."""
        over = self._namespaces.renew(opened)
        self._catalog.retired.add(over)
        self._reservations.doom_edition(over)
        self._entries.announce_cleared(opened.edition)

    def sweep(self) -> bool:
        """Drops some of what is retired; true when there is more to do."""
        catalog = self._catalog
        if not catalog.retired:
            return False
        if self._next_slot == 1:
            self._carried, self._retired_at_start = set(), set(catalog.retired)
        stop = min(self._next_slot + SWEPT_SLOTS, catalog.table.num_slots)
        slots = self._retired_slots(self._next_slot, stop)
        gone = slots[:SWEPT_ENTRIES]
        self._entries.drop_silently(gone, DropReason.INVALIDATED)
        if len(gone) < len(slots):
            return True
        self._next_slot = stop
        if stop < catalog.table.num_slots:
            return True
        self._end_pass()
        return False  # what is left waits for readers and writers

    def _retired_slots(self, start: int, stop: int) -> list[int]:
        """Committed ones that may be dropped. Notes which editions are still carried by others:
        those end by themselves, with their last reader or their writer."""
        catalog = self._catalog
        numbers = np.frombuffer(catalog.namespaces, np.uint16)[start:stop]
        states = catalog.table.rows()[start:stop, HEAD] & 0xFF
        carries = np.isin(numbers, list(catalog.retired)) & (states != SlotState.FREE)
        dead = np.frombuffer(catalog.flags, np.uint8)[start:stop] & DEAD != 0
        mine = carries & (states == SlotState.COMMITTED) & ~dead
        self._carried.update(np.unique(numbers[carries & ~mine]).tolist())
        pinned = np.frombuffer(catalog.pins, np.uint32)[start:stop] > 0
        self._carried.update(np.unique(numbers[mine & pinned]).tolist())
        found: list[int] = (np.flatnonzero(mine) + start).tolist()
        return found

    def _end_pass(self) -> None:
        self._next_slot = 1
        for edition in self._retired_at_start - self._carried:
            self._catalog.retired.discard(edition)
            self._namespaces.swept(edition)

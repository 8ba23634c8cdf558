"""Making everything of a kind a miss in one step, whatever its size: the floor of a namespace is
raised; a namespace, the string entries, or everything is cleared.

Entries carry the edition of their namespace (namespaces.py); string entries have editions, too.
What is retired gets another one: what carries the old is found by nobody from this moment on, may
be replaced, and is swept in the background, a part of the slots at a time.

    current ──retire──► retired ──no key leads to one──► lingering ──no slot carries it──► spare

A client that knows where an entry lies reads it without asking until it is swept: who promises that
nobody reads it any more waits for the `Sweep`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ..slots import HEAD, PLACE, SlotState
from .catalog import DEAD
from .ends import DropReason, Retired
from .entries import REMEMBERED_DROPS, Entries
from .memory import WORTH_GIVING_BACK, give_memory_back
from .namespaces import Namespaces, OpenNamespace
from .reservations import Reservations

SWEPT_SLOTS = 1 << 12
"""Looked at in one step, and again until what is dropped of them is gone."""
SWEPT_ENTRIES = 1 << 10
"""Dropped in one step: milliseconds' work."""
LINGER_SECONDS = 1.0
"""Between two looks at whether an edition that only readers and writers still carry has ended."""


class Retiring:
    """Works on the catalog that it is given."""

    def __init__(
        self, entries: Entries, reservations: Reservations, namespaces: Namespaces
    ) -> None:
        self._entries = entries
        self.catalog = entries.catalog
        self._reservations = reservations
        self._namespaces = namespaces
        self._next_slot = 1
        self._carried: set[int] = set()  # ended editions met since the first slot
        self._ended: set[int] = set()  # what the pass under way looks for
        self._lingering: set[int] = set()
        self._look_again_at = 0.0
        self._looks_again = False
        self.num_passes = 0
        """That have come to their end."""

    def raise_floor(self, opened: OpenNamespace) -> Sweep:
        """Does not look at what is stored; what is being written ends with its commit."""
        over = self._namespaces.renew(opened)
        self._reservations.doom_edition(over)
        self._entries.announce_cleared(opened.edition)
        return self._retire([over], DropReason.INVALIDATED, is_told=True)

    def clear(self, chosen: Sequence[OpenNamespace], *, strings: bool) -> Sweep:
        """Of these namespaces, and of string entries if they are meant. What clients are writing
        will be visible, what fills ends. Raises OutOfSpace, with nothing changed."""
        self._namespaces.check_room(len(chosen) + strings)
        renewed: dict[int, int] = {}
        for opened in chosen:
            over = self._namespaces.renew(opened)
            renewed[over] = opened.edition
        if strings:
            over = self.catalog.strings
            self.catalog.strings = self._namespaces.renew_strings()
            renewed[over] = self.catalog.strings
        self._reservations.carry_over(renewed)
        is_everything = strings and len(chosen) == len(self._namespaces)
        if is_everything:
            self._entries.announce_cleared()
        else:
            for opened in chosen:
                self._entries.announce_cleared(opened.edition)
        is_told = is_everything or not strings
        return self._retire(renewed, DropReason.CLEARED, is_told=is_told)

    def _retire(self, editions: Iterable[int], reason: DropReason, *, is_told: bool) -> Sweep:
        """`is_told`: one event has told of them as a whole."""
        retired = {edition: Retired(reason) for edition in editions}
        self.catalog.retired.update(retired)
        if is_told:
            self.catalog.told.update(retired)
        is_between = self._next_slot == 1
        return Sweep(self, [*retired.values()], self.num_passes + (1 if is_between else 2))

    # -- sweeping ---------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Ends what lingers in time."""
        if self._lingering and now >= self._look_again_at:
            self._look_again_at = now + LINGER_SECONDS
            self._looks_again = True

    def sweep(self) -> bool:
        """Drops some of what is retired; true when there is more to do."""
        catalog = self.catalog
        if self._next_slot == 1:
            if not catalog.retired and not self._looks_again:
                return False
            self._looks_again = False
            self._carried, self._ended = set(), {*catalog.retired, *self._lingering}
        stop = min(self._next_slot + SWEPT_SLOTS, catalog.table.num_slots)
        slots = self._retired_slots(self._next_slot, stop)
        self._drop(slots[:SWEPT_ENTRIES])
        if len(slots) > SWEPT_ENTRIES:
            return True
        self._next_slot = stop
        if stop < catalog.table.num_slots:
            return True
        self._end_pass()
        return False  # what is left waits for readers and writers

    def _retired_slots(self, start: int, stop: int) -> NDArray[np.int64]:
        """Committed ones that are to be dropped. Notes which editions others carry: those end by
        themselves, with their last reader or their writer. A run carries none: what is cut from it
        gets one then."""
        catalog = self.catalog
        numbers = np.frombuffer(catalog.namespaces, np.uint16)[start:stop]
        rows = catalog.table.rows()[start:stop]
        carriers = np.flatnonzero(np.isin(numbers, list(self._ended)))
        states = rows[carriers, HEAD] & 0xFF
        is_entry = (states != SlotState.FREE) & (rows[carriers, PLACE] & 0xFFFFFFFF != 0)
        dead = np.frombuffer(catalog.flags, np.uint8)[start:stop][carriers] & DEAD != 0
        mine = is_entry & (states == SlotState.COMMITTED) & ~dead
        pinned = np.frombuffer(catalog.pins, np.uint32)[start:stop][carriers] > 0
        self._carried.update(np.unique(numbers[carriers[is_entry & (pinned | ~mine)]]).tolist())
        slots: NDArray[np.int64] = carriers[mine] + start
        return slots

    def _drop(self, slots: NDArray[np.int64]) -> None:
        numbers = np.frombuffer(self.catalog.namespaces, np.uint16)[slots]
        for edition in np.unique(numbers).tolist():
            retired = self.catalog.retired[edition]
            dropped: list[int] = slots[numbers == edition].tolist()
            if retired.num_gone < REMEMBERED_DROPS:
                self._entries.drop(dropped, retired.reason)
            else:
                self._entries.drop_unexplained(dropped)
            if retired.reason is DropReason.CLEARED:
                self._entries.counters.removals += len(dropped)

    def _end_pass(self) -> None:
        self._next_slot = 1
        self.num_passes += 1
        self._lingering = self._ended & self._carried
        for edition in self._ended:
            self.catalog.retired.pop(edition, None)
            self.catalog.told.discard(edition)
            if edition not in self._carried:
                self._namespaces.swept(edition)


class Sweep:
    """What was retired together ends as this is iterated over, in parts of a few milliseconds
    between which others may act; and a little at a time without that. Then no key and no slot
    leads to it, and its space is free, but for what readers have pinned."""

    def __init__(self, retiring: Retiring, retired: Sequence[Retired], last_pass: int) -> None:
        self._retiring = retiring
        self._retired = retired
        self._last_pass = last_pass

    def __iter__(self) -> Iterator[None]:
        retiring = self._retiring
        while self._retired and retiring.num_passes < self._last_pass:
            retiring.sweep()
            yield
        if self.num_gone >= WORTH_GIVING_BACK:
            yield from give_memory_back(retiring.catalog)

    @property
    def num_gone(self) -> int:
        """How many entries it has ended so far."""
        return sum(each.num_gone for each in self._retired)

"""What the pool holds: key → slot, and a column for everything known of a slot.

No Python object is kept for an entry besides its key and its number: the header slot's words and
`array` columns hold the rest, so a million entries neither cost much nor stall the collector.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from ..keys import EntryId
from ..slots import HEAD, LENGTH, PLACE, WORDS, SlotState
from .allocator import occupied_bytes, occupied_bytes_of
from .chains import Chains
from .ends import Retired
from .eviction import Links
from .slot_table import SlotTable
from .types import Origin

SOFT_PINNED, DEAD, QUARANTINED, REQUEST_SCOPED, DOOMED, VOLATILE, FLUSHED, RETIRED = (
    1 << bit for bit in range(8)
)
"""Bits of the flags column.

DEAD            its end waits for the last unpin
REQUEST_SCOPED  one request's, told to nobody
DOOMED          a fill of what was removed meanwhile: it ends, and never becomes visible
VOLATILE        ends by itself (a time to live, one request's): not worth a disk
FLUSHED         lies on the NVMe tier too
RETIRED         did so once, and had to make room there
"""
_U32 = 0xFFFFFFFF
COPIED_KEYS = 1 << 14
"""Keys of a dictionary that is copied to make it smaller: a millisecond's work."""
STRINGS = 0
"""First edition of string entries, and what stands for all of them."""


class Catalog:
    """Columns are indexed by slot and as long as `table.num_slots`."""

    def __init__(self, max_entries: int) -> None:
        self.table = SlotTable(max_entries)
        self.words = self.table.words
        self.committed: dict[bytes, int] = {}
        self.guarded: set[int] = set()  # editions that others' writes do not evict
        self.strings = STRINGS  # edition of string entries
        self.retired: dict[int, Retired] = {}  # editions that nobody finds any more
        self.told: set[int] = set()  # of these, what an event has told of as a whole
        self.pending: dict[bytes, int] = {}  # blocks that clients still write, first reservation
        self.filling: dict[bytes, int] = {}  # entries that come from another tier or node
        self.origins: dict[int, Origin] = {}  # of fills
        self.request_scoped: set[int] = set()
        self.chains = Chains()
        self.links = Links(self.words, self.chains)
        self.namespaces = array("H")
        self.flags = array("B")
        self.pins = array("I")
        self.touched = array("I")  # tick of the last use
        # An object array, since the collector walks lists but not these.
        self.keys = np.empty(0, object)
        self.checksums: dict[int, bytearray] = {}  # multi-extent entries: u64 LE each

    def close(self) -> None:
        self.table.close()

    @property
    def visible(self) -> Mapping[bytes, int]:
        """`committed` without what is retired. Costs nothing while nothing is."""
        return _Unretired(self) if self.retired else self.committed

    def absent(self, entries: Iterable[bytes]) -> set[bytes]:
        """Those that are not `visible`. Among many entries a set's difference waits for several
        cache lines at a time, where look-ups one by one wait for each."""
        if self.retired:
            visible = self.visible
            return {entry for entry in entries if entry not in visible}
        return set(entries).difference(self.committed)

    def is_retired(self, slot: int) -> bool:
        return self.namespaces[slot] in self.retired

    def count_gone(self, edition: int, count: int) -> None:
        """Nothing leads to so many of its entries any more."""
        retired = self.retired.get(edition)
        if retired is not None:
            retired.num_gone += count

    def is_guarded(self, slot: int) -> bool:
        return self.namespaces[slot] in self.guarded

    def take_slot(self) -> int:
        """A free slot, or NO_SLOT."""
        slot = self.table.take()
        if slot >= len(self.flags):
            self._resize(self.table.num_slots)
        return slot

    def take_slot_for_run(self) -> int:
        """As `take_slot`."""
        slot = self.table.take_for_run()
        if slot >= len(self.flags):
            self._resize(self.table.num_slots)
        return slot

    def take_slots(self, count: int) -> NDArray[np.int64]:
        """As many free slots, or fewer."""
        slots = self.table.take_many(count)
        if self.table.num_slots > len(self.flags):
            self._resize(self.table.num_slots)
        return slots

    def take_few_slots(self, count: int) -> list[int]:
        """As `take_slots`."""
        slots = self.table.take_few(count)
        if self.table.num_slots > len(self.flags):
            self._resize(self.table.num_slots)
        return slots

    def give_back_slot(self, slot: int) -> None:
        self.keys[slot] = None
        self.flags[slot] = 0
        self.links.marks[slot] = 0  # the next may be pinned before it is ever queued
        self.checksums.pop(slot, None)
        self.request_scoped.discard(slot)
        self.table.give_back(slot)

    def forget(self, slots: NDArray[np.int64]) -> None:
        """Frees committed, unpinned slots all at once; no other slot may be linked to them."""
        gone = set(slots.tolist())
        for slot in self.checksums.keys() & gone:
            del self.checksums[slot]
        self.request_scoped -= gone
        for column in (*self.chains.columns(), *self.links.columns(), self.flags):
            np.frombuffer(column, f"u{column.itemsize}")[slots] = 0
        self.keys[slots] = None
        self.table.give_back_many(slots)

    def find(self, slot: int, generation: int) -> SlotState:
        """State of the slot if it still has that generation, else FREE."""
        if not 0 < slot < len(self.flags):
            return SlotState.FREE
        head = self.words[slot * WORDS + HEAD]
        return SlotState(head & 0xFF) if head >> 32 == generation else SlotState.FREE

    def generation(self, slot: int) -> int:
        return self.words[slot * WORDS + HEAD] >> 32

    def local_fill(self, entry: bytes) -> int | None:
        """Slot of an entry that fills from this node's own tiers."""
        slot = self.filling.get(entry)
        return slot if slot is not None and self.origins[slot].is_local else None

    def doom_fills(self, entries: Iterable[bytes]) -> None:
        """These entries were removed while they come from elsewhere: nobody finds them any more,
        and they end when their writer is done."""
        if not self.filling:
            return
        for entry in entries:
            slot = self.filling.pop(entry, None)
            if slot is not None:
                self.flags[slot] |= DOOMED

    def entry(self, slot: int) -> EntryId:
        return EntryId(self.keys[slot])

    def occupied(self, slot: int) -> int:
        """What the slot takes of its segment. A run (no extents) takes just its length."""
        position = slot * WORDS
        length = self.words[position + LENGTH]
        return occupied_bytes(length) if self.words[position + PLACE] & _U32 else length

    def occupied_of(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """`occupied` of each."""
        rows = self.table.rows()
        lengths = rows[slots, LENGTH].astype(np.int64)
        return np.where(rows[slots, PLACE] & _U32, occupied_bytes_of(lengths), lengths)

    def used_slots(self) -> list[int]:
        heads = self.table.rows()[:, HEAD]
        return [int(slot) for slot in np.flatnonzero(heads & 0xFF)]

    def trim(self) -> Iterator[None]:
        """Gives memory of what is no longer there back, in parts between which others may act. A
        dictionary that still holds much shrinks by itself when it next grows."""
        if len(self.committed) <= COPIED_KEYS:
            self.committed = dict(self.committed)
        self.pending = dict(self.pending)
        self.filling = dict(self.filling)
        self.checksums = dict(self.checksums)
        while self.table.trim():
            self._resize(self.table.num_slots)
            yield

    def _resize(self, num_slots: int) -> None:
        missing = num_slots - len(self.flags)
        for column in (
            *self.chains.columns(),
            *self.links.columns(),
            self.namespaces,
            self.flags,
            self.pins,
            self.touched,
        ):
            if missing > 0:
                column.frombytes(bytes(missing * column.itemsize))
            else:
                del column[num_slots:]
        self.keys.resize(num_slots, refcheck=False)


class _Unretired(Mapping[bytes, int]):
    """What is committed and carries no retired edition."""

    def __init__(self, catalog: Catalog) -> None:
        self._committed = catalog.committed
        self._namespaces = catalog.namespaces
        self._retired = catalog.retired

    def __getitem__(self, entry: bytes) -> int:
        slot = self._committed[entry]
        if self._namespaces[slot] in self._retired:
            raise KeyError(entry)
        return slot

    def __iter__(self) -> Iterator[bytes]:
        return (entry for entry in self._committed if entry in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

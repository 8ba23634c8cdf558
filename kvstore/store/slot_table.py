"""The header slots (kvstore/slots.py) and which of them are free. Daemon side: the only writer."""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

from moontide.transfer import Segment
from moontide.transfer.errors import SegmentUnavailable
from moontide.transfer.types import PAGE_BYTES, align_up

from ..slots import HEAD, HEARTBEAT, SLOT_BYTES, WORDS, SlotState, pack_head

NO_SLOT = 0
"""Never an entry: links use it as null."""
SLOTS_FOR_RUNS = 64
"""So many of the lowest are for runs, while there are others; of a small table a 64th of all."""
GROWTH_SLOTS = 16384
"""Memory for so many slots is taken at a time, and columns beside the table grow with it."""


class SlotTable:
    """A sparse memfd of slots. `words` is the live table, 8 words a slot. Slots below
    `num_slots` have memory; the rest cost nothing."""

    def __init__(self, max_entries: int) -> None:
        self._limit = max_entries + 1
        self.num_bytes = align_up(self._limit * SLOT_BYTES, PAGE_BYTES)
        self.memory = Segment(self.num_bytes, name="moontide-slots", reserved=False)
        self.memory.reserve(0, PAGE_BYTES)
        self.words = self.memory.buffer.cast("Q")
        self._free = array("I")
        self._last_for_runs = min(SLOTS_FOR_RUNS, self._limit // SLOTS_FOR_RUNS)
        self._for_runs = [*range(1, 1 + self._last_for_runs)]  # free ones
        self._next = 1 + self._last_for_runs  # lowest of the others never used since the last trim
        self.num_slots = 0
        self._first_generation = 1
        self.num_used = 0

    def beat(self, milliseconds: int) -> None:
        """The daemon is well: clients may rely on what the slots say."""
        self.words[HEARTBEAT] = milliseconds

    def close(self) -> None:
        self.words.release()
        self.memory.close()

    def take(self) -> int:
        """A free slot (its head word holds the generation to use), or NO_SLOT when there is
        none: all are used, or there is no memory for more. May raise `num_slots`."""
        self._share_with_entries(1)
        if self._free:
            self.num_used += 1
            return self._free.pop()
        slot = self._next
        if slot >= self._limit or (slot >= self.num_slots and not self._grow()):
            return NO_SLOT
        self._next += 1
        self.num_used += 1
        self.words[slot * WORDS + HEAD] = pack_head(self._first_generation, 0, SlotState.FREE)
        return slot

    def take_for_run(self) -> int:
        """As `take`, one of the lowest: a run outlives a clear, and what lies below the highest
        used slot cannot be given back then."""
        if not self._for_runs or (self._for_runs[-1] >= self.num_slots and not self._grow()):
            return self.take()
        self.num_used += 1
        return self._prepared(self._for_runs.pop())

    def _prepared(self, slot: int) -> int:
        position = slot * WORDS + HEAD
        self.words[position] = self.words[position] or pack_head(
            self._first_generation, 0, SlotState.FREE
        )
        return slot

    def take_many(self, count: int) -> NDArray[np.int64]:
        """As `take`, for `count` slots or as many as there are."""
        self._share_with_entries(count)
        kept = max(len(self._free) - count, 0)
        freed = np.array(self._free[kept:], np.int64)
        del self._free[kept:]
        self.num_used += len(freed)
        if len(freed) == count:
            return freed
        new = self._extend(count - len(freed))
        head = pack_head(self._first_generation, 0, SlotState.FREE)
        self.rows()[new.start : new.stop, HEAD] = head
        self.num_used += len(new)
        return np.concatenate((freed, np.arange(new.start, new.stop)))

    def take_few(self, count: int) -> list[int]:
        """As `take_many`, at less cost for less than a hundred."""
        self._share_with_entries(count)
        slots: list[int] = []
        if self._free:
            kept = max(len(self._free) - count, 0)
            slots = self._free[kept:].tolist()
            del self._free[kept:]
        if len(slots) < count:
            head = pack_head(self._first_generation, 0, SlotState.FREE)
            for slot in self._extend(count - len(slots)):
                self.words[slot * WORDS + HEAD] = head
                slots.append(slot)
        self.num_used += len(slots)
        return slots

    def _share_with_entries(self, count: int) -> None:
        """What runs had, when nothing else is left."""
        if self._for_runs and self._limit - self._next + len(self._free) < count:
            self._free.extend(map(self._prepared, self._for_runs))
            self._for_runs.clear()

    def _extend(self, count: int) -> range:
        """Slots never used since the last trim, at most `count`."""
        first = self._next
        stop = min(first + count, self._limit)
        while stop > self.num_slots and self._grow():
            pass
        self._next = max(first, min(stop, self.num_slots))
        return range(first, self._next)

    def give_back(self, slot: int) -> None:
        """Frees the slot under the next generation: from now on no reader takes its bytes for the
        old entry's."""
        position = slot * WORDS + HEAD
        generation = (self.words[position] >> 32) + 1 & 0xFFFFFFFF or 1
        self.words[position] = generation << 32
        if slot <= self._last_for_runs:
            self._for_runs.append(slot)
        else:
            self._free.append(slot)
        self.num_used -= 1

    def give_back_many(self, slots: NDArray[np.int64]) -> None:
        heads = self.rows()[:, HEAD]
        generations = (heads[slots] >> 32) + 1 & 0xFFFFFFFF
        heads[slots] = np.maximum(generations, 1) << 32
        self._free.frombytes(slots[slots > self._last_for_runs].astype(np.uint32).tobytes())
        self._for_runs += slots[slots <= self._last_for_runs].tolist()
        self.num_used -= len(slots)

    def trim(self) -> bool:
        """Returns the memory of the highest GROWTH_SLOTS, but for those of runs, if none of them is
        used; False: one is. Generations go on from the highest ever, so that no old location
        becomes right again."""
        least = align_up(1 + self._last_for_runs, PAGE_BYTES // SLOT_BYTES)
        kept = max((self.num_slots - 1) // GROWTH_SLOTS * GROWTH_SLOTS, least)
        heads = self.rows()[kept:, HEAD].copy()
        if not len(heads) or (heads & 0xFF).any():
            return False
        self._first_generation = max(self._first_generation, int(heads.max() >> 32) + 1)
        free = np.frombuffer(self._free, np.uint32)
        self._free = array("I", free[free < kept].tobytes())
        self._next = min(self._next, kept)
        self.memory.punch(kept * SLOT_BYTES, (self.num_slots - kept) * SLOT_BYTES)
        self.num_slots = kept
        return True

    def rows(self) -> NDArray[np.uint64]:
        """[num_slots, 8] view of the slots that have memory. Drop it before the next call."""
        return np.frombuffer(self.words, np.uint64, self.num_slots * WORDS).reshape(-1, WORDS)

    def _grow(self) -> bool:
        more = min(GROWTH_SLOTS, self.num_bytes // SLOT_BYTES - self.num_slots)
        try:
            self.memory.reserve(self.num_slots * SLOT_BYTES, more * SLOT_BYTES)
        except SegmentUnavailable:
            return False
        self.num_slots += more
        return True

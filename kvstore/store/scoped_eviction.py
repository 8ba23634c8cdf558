"""An eviction that an operator asks for: of a namespace, of keys, of what is old, or of so many
bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from ..keys import BLOCK_KEY_BYTES, block_key_of, is_block
from ..slots import HEAD, PLACE, WORDS, SlotState
from .cheapest import Cheapest
from .ends import DropReason
from .entries import TICKS_PER_SECOND, Entries
from .eviction import OUT
from .namespaces import Namespaces
from .slot_table import NO_SLOT
from .types import Evicted, EvictScope

LOOKED_AT_ONCE = 1 << 13
"""Slots."""
EVICTED_AT_ONCE = 1 << 10
_BLOCK_ID_BYTES = 1 + BLOCK_KEY_BYTES
Slots = NDArray[np.int64]


class Eviction:
    """Planned and carried out in parts of a few milliseconds, between which others may act (what
    is left of a plan is made by whoever needs it). Nothing is dropped before `carry_out`."""

    def __init__(
        self,
        scope: EvictScope,
        entries: Entries,
        namespaces: Namespaces,
        *,
        edition: Callable[[], int | None],
        now: float,
    ) -> None:
        """`edition`: of the namespace that is meant, at that moment (numbers are used again); None:
        of any."""
        self._scope = scope
        self._entries = entries
        self._catalog = entries.catalog
        self._namespaces = namespaces
        self._edition = edition
        self._latest = entries.tick(now) - (scope.older_than_s or 0.0) * TICKS_PER_SECOND
        self._wanted = None if scope.entries is None else frozenset(scope.entries)
        self._chosen: list[tuple[int, int]] = []  # slots and their generations
        self._num_bytes = self._num_tokens = 0
        self.planning = self._plan()

    @property
    def takes(self) -> Evicted:
        """A block's tokens count once, however many of its shards are among them."""
        self._end_planning()
        return Evicted(len(self._chosen), self._num_bytes, self._num_tokens)

    def carry_out(self) -> Iterator[int]:
        """Yields how many went. What was pinned or dropped meanwhile stays as it is."""
        self._end_planning()
        for start in range(0, len(self._chosen), EVICTED_AT_ONCE):
            part = self._chosen[start : start + EVICTED_AT_ONCE]
            slots = [slot for slot, generation in part if self._may_go(slot, generation)]
            self._entries.drop(slots, DropReason.EVICTED)
            self._entries.counters.evictions += len(slots)
            yield len(slots)

    def _may_go(self, slot: int, generation: int) -> bool:
        catalog = self._catalog
        return (
            catalog.find(slot, generation) is SlotState.COMMITTED
            and not catalog.pins[slot]
            and catalog.committed.get(catalog.keys[slot]) == slot
        )

    # -- planning -----------------------------------------------------------------------

    def _end_planning(self) -> None:
        for _ in self.planning:
            pass

    def _plan(self) -> Iterator[None]:
        found: list[Slots] = []
        cheapest, num_bytes = Cheapest(), self._scope.num_bytes
        for slots in self._candidates():
            matching = self._matching(slots)
            if num_bytes is None:
                found.append(matching)
            else:
                taken = self._catalog.occupied_of(matching)
                cheapest.add(matching, self._worth(matching), taken)
            yield
        if num_bytes is not None:
            yield from cheapest.choose(num_bytes, found)
        blocks: set[bytes] = set()
        for part in found:
            self._choose(self._matching(part), blocks)  # slots may have other entries by now
            yield

    def _candidates(self) -> Iterator[Slots]:
        """Of the slots that entries named in full are in, or of all."""
        wanted, committed = self._wanted, self._catalog.committed
        if wanted is not None and not any(map(_is_whole_block, wanted)):
            slots = {committed.get(entry, NO_SLOT) for entry in wanted}
            yield np.array(sorted(slots - {NO_SLOT}), np.int64)
            return
        num_slots = self._catalog.table.num_slots
        for start in range(1, num_slots, LOOKED_AT_ONCE):
            yield np.arange(start, min(start + LOOKED_AT_ONCE, num_slots))

    def _matching(self, slots: Slots) -> Slots:
        """Those in scope that may go."""
        catalog = self._catalog
        slots = slots[slots < catalog.table.num_slots]  # it may have shrunk
        committed = catalog.table.rows()[slots, HEAD] & 0xFF == SlotState.COMMITTED
        unpinned = np.frombuffer(catalog.pins, np.uint32)[slots] == 0
        queued = np.frombuffer(catalog.links.queue, np.uint8)[slots] != OUT
        chosen = committed & unpinned & queued
        if self._scope.older_than_s:
            chosen &= np.frombuffer(catalog.touched, np.uint32)[slots] <= self._latest
        editions = np.frombuffer(catalog.namespaces, np.uint16)[slots]
        if (edition := self._edition()) is not None:
            chosen &= editions == edition
        if catalog.retired:
            chosen &= ~np.isin(editions, list(catalog.retired))
        slots = slots[chosen]
        if not self._scope.key_prefix and self._wanted is None:
            return slots
        named = [self._names(bytes(catalog.keys[slot])) for slot in slots.tolist()]
        return slots[np.array(named, np.bool_)]

    def _names(self, entry: bytes) -> bool:
        if not entry.startswith(self._scope.key_prefix, 1):
            return False
        wanted = self._wanted
        return (
            wanted is None
            or entry in wanted
            or (is_block(entry) and entry[:_BLOCK_ID_BYTES] in wanted)
        )

    def _worth(self, slots: Slots) -> NDArray[np.float64]:
        pool = self._entries.pool
        places = (self._catalog.table.rows()[slots, PLACE] >> 32).astype(np.int64)
        worth = np.zeros(len(slots))
        for index in np.unique(places).tolist():
            arena = pool.segments[index].arena
            assert arena is not None, f"entries lie in segment {index}, which is free"
            mine = places == index
            worth[mine] = arena.policy.worth(slots[mine])
        return worth

    def _choose(self, slots: Slots, blocks: set[bytes]) -> None:
        """`blocks`: keys of those that count already."""
        catalog = self._catalog
        self._num_bytes += int(catalog.occupied_of(slots).sum())
        for slot in slots.tolist():
            self._chosen.append((slot, catalog.words[slot * WORDS + HEAD] >> 32))
            entry = catalog.keys[slot]
            if is_block(entry) and (key := block_key_of(entry)) not in blocks:
                blocks.add(key)
                opened = self._namespaces.get(catalog.namespaces[slot])
                self._num_tokens += opened.namespace.block_tokens


def _is_whole_block(entry: bytes) -> bool:
    """In whatever shards."""
    return len(entry) == _BLOCK_ID_BYTES and is_block(entry)

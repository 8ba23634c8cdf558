"""The longest prefix of blocks whose stored shards together hold what a reader asks for."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

from ..slots import OFFSET, PLACE, WORDS
from ..types import Tier
from ..wire import BlockEntry
from .catalog import Catalog
from .namespaces import OpenNamespace
from .types import LOCAL_TRANSPORT, Origin

_HERE = Origin(Tier.DRAM, LOCAL_TRANSPORT)


class Covered(NamedTuple):
    """Leading blocks that hit. `slots` are all their entries, block after block."""

    blocks: list[list[BlockEntry]]
    shards: list[bytes]
    slots: list[int]

    def within(self, num_slots: int) -> Covered:
        """The leading blocks whose entries are all among the first `num_slots`."""
        ends = list(accumulate(map(len, self.blocks)))
        count = bisect_right(ends, num_slots)
        return Covered(
            self.blocks[:count], self.shards, self.slots[: ends[count - 1] if count else 0]
        )


Place = Callable[[bytes], int | None]
"""Slot of an entry, if it lies there."""


class Finder:
    """Finds blocks among `places`; the first that knows an entry wins. What carries another
    namespace's number, or an edition of this one that is over, is none of its blocks."""

    def __init__(
        self,
        catalog: Catalog,
        namespace: OpenNamespace,
        coverage: Sequence[bytes],
        places: Sequence[Place],
    ) -> None:
        self._catalog = catalog
        self._namespace = namespace
        self._coverage = coverage
        self._places = places

    def prefix(self, keys: Sequence[bytes]) -> Covered:
        """A block counts only if every shard of the coverage is there: itself, or put together
        from others."""
        shards: dict[bytes, int] = {}
        blocks: list[list[BlockEntry]] = []
        slots: list[int] = []
        for key in keys:
            found = self.block(key)
            if found is None:
                break
            block = []
            for shard, slot in found.items():
                index = shards.setdefault(shard, len(shards))
                block.append(self._block_entry(slot, index))
                slots.append(slot)
            blocks.append(block)
        return Covered(blocks, list(shards), slots)

    def block(self, key: bytes) -> dict[bytes, int] | None:
        """Packed shard → slot of what covers the block; exact shards come first."""
        prefix = b"k" + key
        found: dict[bytes, int] = {}
        present: dict[bytes, int] | None = None
        for wanted in self._coverage:
            slot = self._slot(prefix + wanted)
            if slot is not None:
                found[wanted] = slot
                continue
            if present is None:
                present = self._present(prefix)
            needed = self._namespace.cover(tuple(present), wanted)
            if needed is None:
                return None
            for shard in needed:
                found[shard] = present[shard]
        return found

    def _present(self, prefix: bytes) -> dict[bytes, int]:
        slots = {shard: self._slot(prefix + shard) for shard in self._namespace.stored}
        return {shard: slot for shard, slot in slots.items() if slot is not None}

    def _slot(self, entry: bytes) -> int | None:
        namespaces, edition = self._catalog.namespaces, self._namespace.edition
        for place in self._places:
            slot = place(entry)
            if slot is not None and namespaces[slot] == edition:
                return slot
        return None

    def _block_entry(self, slot: int, shard: int) -> BlockEntry:
        words, position = self._catalog.words, slot * WORDS
        head, place = words[position], words[position + PLACE]
        origin = self._catalog.origins.get(slot)
        return BlockEntry(
            slot,
            head >> 32,
            place >> 32,
            words[position + OFFSET],
            shard,
            head >> 8 & 0xFFFF,
            origin.tier if origin else Tier.DRAM,
        )


def ways(catalog: Catalog, blocks: Sequence[Sequence[BlockEntry]]) -> tuple[list[str], list[str]]:
    """How each block comes to this node's DRAM, and from which peer; both empty when all lie
    there."""
    origins = catalog.origins
    if not origins:
        return [], []
    found = [
        next((origins[entry.slot] for entry in block if entry.slot in origins), _HERE)
        for block in blocks
    ]
    if all(origin is _HERE for origin in found):
        return [], []
    peers = [origin.peer for origin in found]
    return [origin.transport for origin in found], peers if any(peers) else []

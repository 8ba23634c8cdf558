"""The longest prefix of blocks whose stored shards together hold what a reader asks for."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from ..slots import OFFSET, PLACE, WORDS
from ..types import Tier
from ..wire import BlockEntry
from .catalog import Catalog
from .namespaces import OpenNamespace


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


def find_prefix(
    catalog: Catalog,
    namespace: OpenNamespace,
    keys: Sequence[bytes],
    coverage: Sequence[bytes],
    pending: Mapping[bytes, int],
) -> Covered:
    """A block counts only if every shard of `coverage` is there: itself, or put together from
    others. `pending` maps entries still being written that count as there."""
    shards: dict[bytes, int] = {}
    blocks: list[list[BlockEntry]] = []
    slots: list[int] = []
    for key in keys:
        found = _find_block(catalog.committed, namespace, key, coverage, pending)
        if found is None:
            break
        block = []
        for shard, slot in found.items():
            index = shards.setdefault(shard, len(shards))
            block.append(_block_entry(catalog, slot, index))
            slots.append(slot)
        blocks.append(block)
    return Covered(blocks, list(shards), slots)


def _find_block(
    committed: Mapping[bytes, int],
    namespace: OpenNamespace,
    key: bytes,
    coverage: Sequence[bytes],
    pending: Mapping[bytes, int],
) -> dict[bytes, int] | None:
    """Packed shard → slot of what covers the block; exact shards come first."""
    prefix = b"k" + key
    found: dict[bytes, int] = {}
    present: dict[bytes, int] | None = None
    for wanted in coverage:
        entry = prefix + wanted
        slot = committed.get(entry) or pending.get(entry)
        if slot is not None:
            found[wanted] = slot
            continue
        if present is None:
            present = {}
            for shard in namespace.stored:
                slot = committed.get(prefix + shard) or pending.get(prefix + shard)
                if slot is not None:
                    present[shard] = slot
        needed = namespace.cover(tuple(present), wanted)
        if needed is None:
            return None
        for shard in needed:
            found[shard] = present[shard]
    return found


def _block_entry(catalog: Catalog, slot: int, shard: int) -> BlockEntry:
    words, position = catalog.words, slot * WORDS
    head, place = words[position], words[position + PLACE]
    return BlockEntry(
        slot,
        head >> 32,
        place >> 32,
        words[position + OFFSET],
        shard,
        head >> 8 & 0xFFFF,
        Tier.DRAM,
    )

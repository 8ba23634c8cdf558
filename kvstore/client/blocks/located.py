"""Where the blocks of a prefix lie, and how each layer that was asked for is put together from the
stored shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ... import wire
from ...errors import InvalidRequest
from ...keys import BlockKey, Namespace
from ...layout import KVLayout, LayerPiece, Shard, reshard
from ...types import Tier

LOCAL = "shm"
"""Transport of a block that lay in this node's DRAM."""


class Coverage:
    """The shards one client reads and writes, and their layers as one list: layer `i` of the API is
    `layers[i]` = (shard index, layer within that shard). With one group and no sharding of layers
    that is the model's own numbering."""

    def __init__(self, namespace: Namespace, shards: Sequence[Shard]) -> None:
        """Raises LayoutMismatch when a shard reaches outside the layout, InvalidRequest without
        shards."""
        if not shards:
            raise InvalidRequest("shard is an empty sequence; give at least one shard, or None")
        self.digest = namespace.digest
        self.layout: KVLayout = namespace.layout
        self.block_tokens = namespace.block_tokens
        for shard in shards:
            self.layout.check(shard)
        self.shards = tuple(shards)
        self.packed = [shard.pack() for shard in shards]
        self.layers = tuple(
            (index, layer)
            for index, shard in enumerate(shards)
            for layer in range(shard.num_layers)
        )

    def is_same(self, other: Coverage) -> bool:
        """True when each layer has the same blocks and bytes in both."""
        return (self.digest, self.shards) == (other.digest, other.shards)

    def __str__(self) -> str:
        return f"namespace {self.digest.hex()[:12]}, shards {list(self.shards)}"

    def layer_bytes(self, layer: int) -> int:
        """Bytes of one block of one layer. Raises InvalidRequest outside the coverage."""
        self.check_layer(layer)
        return self.layout.layer_bytes(self.shards[self.layers[layer][0]], self.block_tokens)

    def check_layer(self, layer: int) -> None:
        if not 0 <= layer < len(self.layers):
            raise InvalidRequest(
                f"layer {layer}; this coverage has {len(self.layers)} layers, counted from 0"
            )


class StoredEntry(NamedTuple):
    """One shard of one block in the pool."""

    slot: int
    generation: int
    segment: int
    offset: int
    layer_bytes: int
    layer_stride: int
    extents: int  # complete layers when it was looked up
    checksums: int  # index of its first layer's in LocatedBlocks.checksums


class StoredExtent(NamedTuple):
    """One layer of one stored entry: the unit that is verified."""

    entry: StoredEntry
    layer: int

    @property
    def offset(self) -> int:
        return self.entry.offset + self.layer * self.entry.layer_stride


class Piece(NamedTuple):
    """A run of bytes that a reader takes from one stored extent."""

    extent: StoredExtent
    source_offset: int
    target_offset: int
    num_bytes: int


Plan = tuple[tuple[LayerPiece, ...], ...]
"""For each layer of a coverage, what to take from which entry of a block."""


class LocatedBlocks:
    """Blocks of one lookup, in prompt order. Good for as long as each entry's header slot shows its
    generation, in the daemon `instance`; those of a lookup without a ticket (`is_pinned` False) as
    long as a key leads to it. `is_complete`: every layer was there at the lookup. `read_bytes`
    counts what was loaded."""

    def __init__(
        self,
        reply: wire.BlocksReply,
        keys: Sequence[BlockKey],
        instance: str,
        coverage: Coverage,
    ) -> None:
        """Raises InvalidRequest when the reply contradicts itself."""
        self.instance = instance
        self.coverage = coverage
        self.is_pinned = bool(reply.ticket)
        self.read_bytes = 0  # a statistic; written on I/O threads
        self.keys = tuple(keys[: len(reply.blocks)])
        self.tiers = tuple(_coldest(block) for block in reply.blocks)
        self.transports = tuple(reply.transports) or (LOCAL,) * len(self.keys)
        self.peers = tuple(reply.peers) or ("",) * len(self.keys)
        if not len(self.keys) == len(reply.blocks) == len(self.transports) == len(self.peers):
            raise InvalidRequest(
                f"{len(reply.blocks)} blocks, {len(self.transports)} transports and "
                f"{len(self.peers)} peers for {len(keys)} keys"
            )
        self._checksums: NDArray[np.uint64] = np.frombuffer(reply.checksums, "<u8").copy()
        shards = [Shard.unpack(packed) for packed in reply.shards]
        plans: dict[tuple[int, ...], Plan] = {}
        self._blocks: list[tuple[tuple[StoredEntry, ...], Plan]] = []
        first_checksum = num_complete = 0
        for block in reply.blocks:
            stored = tuple(entry.shard for entry in block)
            if stored not in plans:
                plans[stored] = _plan(coverage, [shards[index] for index in stored])
            entries = []
            for entry in block:
                entries.append(_stored(entry, shards[entry.shard], coverage, first_checksum))
                first_checksum += shards[entry.shard].num_layers
                num_complete += min(entry.extents, shards[entry.shard].num_layers)
            self._blocks.append((tuple(entries), plans[stored]))
        if first_checksum != len(self._checksums):
            raise InvalidRequest(f"{len(self._checksums)} checksums for {first_checksum} extents")
        self.is_complete = num_complete == first_checksum

    def __len__(self) -> int:
        return len(self._blocks)

    def segments(self, blocks: Sequence[int]) -> set[int]:
        return {entry.segment for block in blocks for entry in self._blocks[block][0]}

    def pieces(self, block: int, layer: int) -> list[Piece]:
        """How to assemble `layer` of `block`."""
        entries, plan = self._blocks[block]
        return [
            Piece(
                StoredExtent(entries[piece.source], piece.source_layer),
                piece.source_offset,
                piece.target_offset,
                piece.num_bytes,
            )
            for piece in plan[layer]
        ]

    def checksum(self, extent: StoredExtent) -> int:
        """0 for one that was not complete at the lookup, until it is learned."""
        return int(self._checksums[extent.entry.checksums + extent.layer])

    def learn(self, extent: StoredExtent, checksum: int) -> None:
        """What the daemon said once the extent was complete; for every load with this ticket."""
        self._checksums[extent.entry.checksums + extent.layer] = checksum


def _plan(coverage: Coverage, stored: Sequence[Shard]) -> Plan:
    layers: list[tuple[LayerPiece, ...]] = []
    for wanted in coverage.shards:
        plan = reshard(coverage.layout, coverage.block_tokens, stored, wanted)
        if plan is None:
            raise InvalidRequest(f"stored shards {list(stored)} do not cover {wanted}")
        layers += plan
    return tuple(layers)


def _stored(
    entry: wire.BlockEntry, shard: Shard, coverage: Coverage, checksums: int
) -> StoredEntry:
    return StoredEntry(
        slot=entry.slot,
        generation=entry.generation,
        segment=entry.segment,
        offset=entry.offset,
        layer_bytes=coverage.layout.layer_bytes(shard, coverage.block_tokens),
        layer_stride=coverage.layout.layer_stride(shard, coverage.block_tokens),
        extents=entry.extents,
        checksums=checksums,
    )


def _coldest(block: Sequence[wire.BlockEntry]) -> Tier:
    """A block is as fast as its slowest shard."""
    order = list(Tier)
    return max((Tier(entry.tier) for entry in block), key=order.index)

"""Places in our pool for what a peer has."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from ...keys import BlockKey, Namespace
from ...layout import Shard
from ...store import FILL_OWNER, REMOTE_TRANSPORT, Origin, Store
from ...types import ReserveStatus, Tier
from .plan import Piece


@dataclass(frozen=True, slots=True)
class FillSpec:
    """Blocks of one shape. `parents` names the block before each, where it is known."""

    number: int  # of the namespace, here
    namespace: Namespace
    keys: Sequence[BlockKey]
    parents: Sequence[bytes]
    shards: Sequence[Shard]
    tier: Tier  # where the bytes come from
    peer: str  # node that has them
    request_scoped_s: float | None = None  # how long such blocks live; None: kept as replicas


def reserve_pieces(store: Store, spec: FillSpec) -> tuple[list[Piece], bool]:
    """One piece for each (block, shard) that is neither here nor filling; false when the pool ran
    out of room: then the blocks from the first without room on have none."""
    results = store.reserve_fill(
        FILL_OWNER,
        spec.number,
        spec.keys,
        spec.parents,
        spec.shards,
        origin=Origin(spec.tier, REMOTE_TRANSPORT, spec.peer),
        request_scoped=spec.request_scoped_s is not None,
        ttl_s=spec.request_scoped_s,
        now=time.monotonic(),
    )
    refused = (ReserveStatus.FULL, ReserveStatus.FAILED)
    width = len(spec.shards)
    cut = next((i for i, got in enumerate(results) if got.status in refused), len(results))
    cut -= cut % width
    beyond = [got for got in results[cut:] if got.status is ReserveStatus.RESERVED]
    store.abort(FILL_OWNER, [got.slot for got in beyond], [got.generation for got in beyond])
    pieces = [
        _piece(store, spec, index, got.slot, got.generation)
        for index, got in enumerate(results[:cut])
        if got.status is ReserveStatus.RESERVED
    ]
    return pieces, cut == len(results)


def _piece(store: Store, spec: FillSpec, index: int, slot: int, generation: int) -> Piece:
    layout, block_tokens = spec.namespace.layout, spec.namespace.block_tokens
    block, position = divmod(index, len(spec.shards))
    shard = spec.shards[position]
    return Piece(
        key=spec.keys[block],
        shard=shard,
        slot=slot,
        generation=generation,
        memory=store.reserved_buffer(FILL_OWNER, slot, generation),
        num_extents=shard.num_layers,
        stride=layout.layer_stride(shard, block_tokens),
        extent_bytes=layout.layer_bytes(shard, block_tokens),
    )

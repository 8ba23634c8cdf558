"""Figures for `GET /v1/stats`, read from the running accounts."""

from __future__ import annotations

import numpy as np

from ..types import Tier
from .catalog import FLUSHED
from .entries import Entries
from .types import TierStats


def dram_stats(entries: Entries) -> TierStats:
    counters, pool = entries.counters, entries.pool
    return TierStats(
        capacity_bytes=pool.capacity_bytes,
        used_bytes=pool.used_bytes,
        pinned_bytes=counters.pinned_bytes,
        reserved_bytes=counters.reserved_bytes,
        quarantined_bytes=counters.quarantined_bytes,
        largest_free_bytes=max(segment.allocator.largest_free_bytes for segment in pool.segments),
        entries=len(entries.catalog.committed),
        hits=counters.hits,
        misses=counters.misses,
        evictions=counters.evictions,
        evicted_unflushed=counters.evicted_unflushed,
        expirations=counters.expirations,
        removals=counters.removals,
        bytes_in=counters.bytes_in,
        bytes_out=counters.bytes_out,
        corrupt=counters.corrupt,
        flushed=_num_flushed(entries),
    )


def _num_flushed(entries: Entries) -> int:
    flags = np.frombuffer(entries.catalog.flags, np.uint8)
    return int(np.count_nonzero(flags & FLUSHED))


def tier_stats(entries: Entries, hbm_blocks: int) -> dict[str, TierStats]:
    return {
        Tier.HBM.value: TierStats(entries=hbm_blocks),
        Tier.DRAM.value: dram_stats(entries),
    }

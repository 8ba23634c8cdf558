"""Running accounts of a store: counters that only grow, and byte sums that `audit` recomputes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    evicted_unflushed: int = 0
    expirations: int = 0
    removals: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    corrupt: int = 0
    refused_puts: int = 0
    not_admitted: int = 0
    double_releases: int = 0
    stale_notices: int = 0
    # sums, occupied bytes
    pinned_bytes: int = 0
    reserved_bytes: int = 0
    quarantined_bytes: int = 0
    num_pins: int = 0

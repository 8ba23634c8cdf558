"""The store's core: allocator, pool, catalog, eviction, reservations, pins. Synchronous and
single-threaded; the daemon wraps it, tests drive it directly."""

from .event_log import EventLog, Snapshot
from .store import Store
from .types import (
    FILL_OWNER,
    LOCAL_TRANSPORT,
    AuditReport,
    BlocksFound,
    EntryInfo,
    EntryPage,
    Evicted,
    EvictScope,
    Explanation,
    ExtentCallback,
    Origin,
    OwnerId,
    PoolSettings,
    ReserveResult,
    Revocation,
    Stats,
    TierStats,
)

__all__ = [
    "FILL_OWNER",
    "LOCAL_TRANSPORT",
    "AuditReport",
    "BlocksFound",
    "EntryInfo",
    "EntryPage",
    "EventLog",
    "EvictScope",
    "Evicted",
    "Explanation",
    "ExtentCallback",
    "Origin",
    "OwnerId",
    "PoolSettings",
    "ReserveResult",
    "Revocation",
    "Snapshot",
    "Stats",
    "Store",
    "TierStats",
]

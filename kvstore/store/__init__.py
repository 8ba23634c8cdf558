"""The store's core: allocator, pool, catalog, eviction, reservations, pins. Synchronous and
single-threaded; the daemon wraps it, tests drive it directly."""

from .event_log import EventLog, Snapshot
from .store import Store
from .types import (
    AuditReport,
    BlocksFound,
    EntryInfo,
    EntryPage,
    Evicted,
    EvictScope,
    Explanation,
    ExtentCallback,
    OwnerId,
    PoolSettings,
    ReserveResult,
    Revocation,
    Stats,
    TierStats,
)

__all__ = [
    "AuditReport",
    "BlocksFound",
    "EntryInfo",
    "EntryPage",
    "EventLog",
    "EvictScope",
    "Evicted",
    "Explanation",
    "ExtentCallback",
    "OwnerId",
    "PoolSettings",
    "ReserveResult",
    "Revocation",
    "Snapshot",
    "Stats",
    "Store",
    "TierStats",
]

"""The store's core: allocator, pool, catalog, eviction, reservations, pins. Synchronous and
single-threaded; the daemon wraps it, tests drive it directly."""

from .demoting import Demotable
from .event_log import EventLog, Holding, Snapshot
from .eviction import EvictionName
from .inspection import key_text
from .pins import MAX_TTL_SECONDS
from .store import Store
from .types import (
    FILL_OWNER,
    LOCAL_TRANSPORT,
    REMOTE_TRANSPORT,
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
    Pieces,
    PoolSettings,
    Purpose,
    ReserveResult,
    Revocation,
    RunOptions,
    RunResult,
    Stats,
    TierStats,
)

__all__ = [
    "FILL_OWNER",
    "LOCAL_TRANSPORT",
    "MAX_TTL_SECONDS",
    "REMOTE_TRANSPORT",
    "AuditReport",
    "BlocksFound",
    "Demotable",
    "EntryInfo",
    "EntryPage",
    "EventLog",
    "EvictScope",
    "EvictionName",
    "Evicted",
    "Explanation",
    "ExtentCallback",
    "Holding",
    "Origin",
    "OwnerId",
    "Pieces",
    "PoolSettings",
    "Purpose",
    "ReserveResult",
    "Revocation",
    "RunOptions",
    "RunResult",
    "Snapshot",
    "Stats",
    "Store",
    "TierStats",
    "key_text",
]

"""The store's core: allocator, pool, catalog, eviction, reservations, pins. Synchronous and
single-threaded; the daemon wraps it, tests drive it directly."""

from .admission import AdmissionRule, AdmissionRules
from .demoting import Demotable
from .ends import DropReason
from .event_log import EventLog, Holding, Snapshot
from .eviction import EvictionName
from .inspection import key_text
from .namespaces import tenant_digest
from .pins import MAX_TTL_SECONDS
from .retiring import Sweep
from .store import Store
from .tenants import TenantBytes, TenantUsage
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
    LayerRun,
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
    "AdmissionRule",
    "AdmissionRules",
    "AuditReport",
    "BlocksFound",
    "Demotable",
    "DropReason",
    "EntryInfo",
    "EntryPage",
    "EventLog",
    "EvictScope",
    "EvictionName",
    "Evicted",
    "Explanation",
    "ExtentCallback",
    "Holding",
    "LayerRun",
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
    "Sweep",
    "TenantBytes",
    "TenantUsage",
    "TierStats",
    "key_text",
    "tenant_digest",
]

"""The store: keys, layout, tiers, wire messages, events, the daemon and its Python client.

client = connect("unix:/run/moontide/store.sock")
client.put("key", b"bytes"); client.get("key")
kv = client.kv(Namespace(...)); kv.lookup(token_ids)
"""

from moontide.transfer import TlsFiles

from .client import (
    AsyncBlockReader,
    AsyncBlockStore,
    AsyncBlockWriter,
    AsyncClient,
    AsyncPinnedKeys,
    BlockReader,
    BlockStore,
    BlockWriter,
    ClientCounters,
    JobId,
    JobResult,
    JobStatus,
    PinnedKeys,
    PrefixHit,
    StoreClient,
    StoreHandle,
    Ticket,
    View,
    connect,
    connect_async,
)
from .errors import (
    AccessDenied,
    Busy,
    Conflict,
    Corrupt,
    ForkedClient,
    InvalidRequest,
    LayoutMismatch,
    OutOfSpace,
    StoreError,
    StoreTimeout,
    StoreUnavailable,
    ViewExpired,
)
from .keys import BlockKey, EntryId, Namespace, block_keys, kv_entry_id, string_entry_id
from .layout import Group, KVLayout, Shard
from .types import Instance, PutResult, PutStatus, ReserveStatus, Tier

__all__ = [
    # connecting
    "AsyncClient",
    "StoreClient",
    "TlsFiles",
    "connect",
    "connect_async",
    # string entries
    "AsyncPinnedKeys",
    "PinnedKeys",
    "PutResult",
    "PutStatus",
    "View",
    # KV blocks
    "AsyncBlockReader",
    "AsyncBlockStore",
    "AsyncBlockWriter",
    "BlockKey",
    "BlockReader",
    "BlockStore",
    "BlockWriter",
    "EntryId",
    "Group",
    "KVLayout",
    "Namespace",
    "PrefixHit",
    "Shard",
    "Ticket",
    "Tier",
    "block_keys",
    "kv_entry_id",
    "string_entry_id",
    # jobs
    "JobId",
    "JobResult",
    "JobStatus",
    "ReserveStatus",
    "StoreHandle",
    # about oneself
    "ClientCounters",
    "Instance",
    # errors
    "AccessDenied",
    "Busy",
    "Conflict",
    "Corrupt",
    "ForkedClient",
    "InvalidRequest",
    "LayoutMismatch",
    "OutOfSpace",
    "StoreError",
    "StoreTimeout",
    "StoreUnavailable",
    "ViewExpired",
]

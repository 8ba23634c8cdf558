"""The Python client of a store daemon: string entries and KV blocks, blocking, asyncio, or by jobs
that an engine submits and polls."""

from .async_client import AsyncClient, connect_async
from .async_pinned import AsyncPinnedKeys
from .blocks.async_store import AsyncBlockReader, AsyncBlockStore, AsyncBlockWriter
from .blocks.block_store import BlockStore
from .blocks.streams import BlockReader, BlockWriter
from .blocks.types import JobId, JobResult, JobStatus, PrefixHit, StoreHandle, Ticket
from .copies import Checksums
from .counters import ClientCounters
from .pinned import PinnedKeys
from .store_client import StoreClient, connect
from .view import View

__all__ = [
    "AsyncBlockReader",
    "AsyncBlockStore",
    "AsyncBlockWriter",
    "AsyncClient",
    "AsyncPinnedKeys",
    "BlockReader",
    "BlockStore",
    "BlockWriter",
    "Checksums",
    "ClientCounters",
    "JobId",
    "JobResult",
    "JobStatus",
    "PinnedKeys",
    "PrefixHit",
    "StoreClient",
    "StoreHandle",
    "Ticket",
    "View",
    "connect",
    "connect_async",
]

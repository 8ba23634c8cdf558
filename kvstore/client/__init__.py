"""The Python client of a store daemon: string entries and KV blocks, blocking, asyncio, or by jobs
that an engine submits and polls."""

from .async_client import AsyncClient, connect_async
from .block_store import BlockStore
from .counters import ClientCounters
from .jobs import JobId, JobResult, JobStatus, PrefixHit, StoreHandle, Ticket
from .store_client import StoreClient, connect
from .streams import BlockReader, BlockWriter
from .view import View

__all__ = [
    "AsyncClient",
    "BlockReader",
    "BlockStore",
    "BlockWriter",
    "ClientCounters",
    "JobId",
    "JobResult",
    "JobStatus",
    "PrefixHit",
    "StoreClient",
    "StoreHandle",
    "Ticket",
    "View",
    "connect",
    "connect_async",
]

"""Who is at the other end of a connection: what request handlers act for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..store import OwnerId, Store
from ..types import Instance
from .budget import Budget
from .drain import Drain
from .floors import FloorKeeper
from .sources import NO_SOURCES, Sources
from .tiers import Tiering


@dataclass(frozen=True, slots=True)
class Peer:
    """One greeted connection. What it reserves and pins belongs to `owner` and ends with the
    connection; what it is granted belongs to `client`, the process."""

    store: Store
    owner: OwnerId
    client: Instance
    shared_memory: bool
    version: int  # of the wire, agreed on
    stats: Callable[[], bytes]  # JSON body of GET /v1/stats
    clock: Callable[[], float]  # monotonic seconds
    copies: Budget  # copied out of the pool and not yet sent, of all connections
    sources: Sources = NO_SOURCES  # where lookups get what DRAM lacks
    tiering: Tiering | None = None  # what lies on this node's disk
    floors: FloorKeeper | None = None
    drain: Drain | None = None

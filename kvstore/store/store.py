"""The store of one node as a plain synchronous class: every decision, no I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from moontide.transfer.types import Instance

from ..keys import BlockKey, EntryId, Namespace
from ..layout import Shard
from ..types import Extent, IfExists, Located, PutResult
from .event_log import EventLog
from .types import (
    AuditReport,
    BlocksFound,
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
)


class Store:
    """Entries of one node in its DRAM pool.

    Single-threaded: the daemon's loop owns it. `now` is monotonic seconds. An owner is a
    connection; what it reserved or view-pinned ends with `disconnect`. Bad arguments raise
    InvalidRequest; what a peer can cause (a finished reservation, a miss, no room) is a result."""

    events: EventLog
    instance: Instance
    settings: PoolSettings

    # -- life -------------------------------------------------------------------------

    @classmethod
    def create(cls, settings: PoolSettings, instance: Instance, *, now: float = 0.0) -> Store:
        """Allocates the whole pool. Raises SegmentUnavailable naming asked and available."""
        raise NotImplementedError

    def close(self) -> None:
        """Gives the pool back. Buffers handed out earlier stay readable until they are dropped."""
        raise NotImplementedError

    # -- connections ------------------------------------------------------------------

    def connect(self, owner: OwnerId, client: Instance) -> None:
        raise NotImplementedError

    def disconnect(self, owner: OwnerId, now: float) -> None:
        """Drops the owner's views and hbm blocks and aborts its reservations; those the client
        could write itself stay in quarantine until `client_quiesced` or `client_exited`."""
        raise NotImplementedError

    def client_quiesced(self, client: Instance) -> None:
        """No write of the client's earlier connections is running: ends its quarantine."""
        raise NotImplementedError

    def client_exited(self, client: Instance) -> None:
        """The process is gone: ends its quarantine and its grants. Its entries stay."""
        raise NotImplementedError

    def release_segment(self, client: Instance, segment: int) -> None:
        """The client has unmapped a granted segment for good."""
        raise NotImplementedError

    def take_revocations(self) -> list[Revocation]:
        """Granted segments to ask back since the last call (RevokeSegment to every connection of
        that client, or any one)."""
        raise NotImplementedError

    # -- memory to hand over ------------------------------------------------------------

    @property
    def segment_sizes(self) -> list[int]:
        raise NotImplementedError

    @property
    def slot_table_descriptor(self) -> int:
        """Read-only. Stays the store's: pass it on, do not close it (so for the next two)."""
        raise NotImplementedError

    @property
    def slot_table_bytes(self) -> int:
        raise NotImplementedError

    def readable_descriptor(self, segment: int) -> int:
        raise NotImplementedError

    def writable_descriptor(self, segment: int, client: Instance) -> int:
        """Raises InvalidRequest unless the segment is granted to `client`."""
        raise NotImplementedError

    # -- writing ----------------------------------------------------------------------

    def open_namespace(self, namespace: Namespace) -> int:
        """Number of the namespace here; equal namespaces give equal numbers."""
        raise NotImplementedError

    def reserve(
        self,
        owner: OwnerId,
        entries: Sequence[EntryId],
        sizes: Sequence[int],
        *,
        if_exists: IfExists = "keep",
        ttl_s: float | None = None,
        soft_pin: bool = False,
        shared_memory: bool = False,
        now: float,
    ) -> list[ReserveResult]:
        """Space for single-extent entries, one result an entry. EXISTS for `keep` and `error` when
        the entry is committed; FULL when nothing can be evicted; FAILED for a size no segment
        holds. Evicts as needed."""
        raise NotImplementedError

    def reserve_blocks(
        self,
        owner: OwnerId,
        namespace: int,
        keys: Sequence[BlockKey],
        parent: bytes,
        shards: Sequence[Shard],
        *,
        shared_memory: bool,
        now: float,
    ) -> list[ReserveResult]:
        """Space for every (block, shard), block-major. `keys` are one chain whose first block
        follows `parent` (empty: a root)."""
        raise NotImplementedError

    def advance(
        self,
        owner: OwnerId,
        slots: Sequence[int],
        generations: Sequence[int],
        extent: int,
        checksums: Sequence[int],
        now: float,
    ) -> None:
        """Layer `extent` of each reservation is complete. Raises InvalidRequest on one that is
        not the owner's (counted), or out of order; then none has moved."""
        raise NotImplementedError

    def commit(
        self,
        owner: OwnerId,
        slots: Sequence[int],
        generations: Sequence[int],
        checksums: Sequence[int],
        now: float,
    ) -> list[PutResult]:
        """Makes reservations visible: STORED; EXISTS (another was first, space is freed); FAILED
        (no such reservation of this owner, or extents missing). `checksums` for single-extent
        entries, empty when every extent was advanced."""
        raise NotImplementedError

    def abort(self, owner: OwnerId, slots: Sequence[int], generations: Sequence[int]) -> int:
        """The writer has stopped: frees the space at once. Unknown ones are counted, not errors.
        Returns how many ended."""
        raise NotImplementedError

    def buffer(self, slot: int, generation: int) -> memoryview:
        """The entry's bytes in the pool, writable, of a reserved or committed entry. Valid while
        the entry is reserved or pinned; raises InvalidRequest when that generation is gone."""
        raise NotImplementedError

    def extents(self, slot: int, generation: int) -> list[Extent]:
        """Complete extents of a reserved or committed entry. Raises like `buffer`."""
        raise NotImplementedError

    def watch_extent(
        self, slot: int, generation: int, extent: int, callback: ExtentCallback
    ) -> Callable[[], None]:
        """Calls back once when the watermark passes `extent` or the reservation ends; at once when
        that is already so. Returns a function that cancels. Raises Busy beyond the bound."""
        raise NotImplementedError

    # -- finding ----------------------------------------------------------------------

    def lookup(
        self, owner: OwnerId, entries: Sequence[EntryId], pin_s: float | None, now: float
    ) -> tuple[list[Located | None], bytes]:
        """One `Located` or None an entry, and a ticket (b"" without a pin or a hit). `pin_s`: None
        no pin, 0 a view that ends with its owner, > 0 a ticket with that TTL. Raises OutOfSpace
        when the client would pin more than its share."""
        raise NotImplementedError

    def lookup_blocks(
        self,
        owner: OwnerId,
        namespace: int,
        keys: Sequence[BlockKey],
        coverage: Sequence[Shard],
        pin_s: float | None,
        pending: bool,
        now: float,
    ) -> BlocksFound:
        """Longest prefix of `keys` whose stored shards cover `coverage`; see `lookup` for pins.
        `pending` also counts reservations still being written."""
        raise NotImplementedError

    def exists(self, entries: Sequence[EntryId], now: float) -> list[bool]:
        raise NotImplementedError

    def unpin(self, owner: OwnerId, ticket: bytes) -> None:
        """Ends a view of this owner, or a ticket of anyone. Raises InvalidRequest (counted) on an
        unknown one or another owner's view."""
        raise NotImplementedError

    def renew(self, ticket: bytes, ttl_s: float, now: float) -> None:
        """Raises InvalidRequest on an unknown or expired ticket, or a view."""
        raise NotImplementedError

    # -- ending -----------------------------------------------------------------------

    def remove(self, entries: Sequence[EntryId], now: float) -> int:
        """Number removed. A pinned one is a miss from now on; its space stays until unpinned."""
        raise NotImplementedError

    def clear(self, namespace: bytes | None, strings_only: bool, now: float) -> int:
        """Removes a namespace (digest), all string entries, or everything, and gives the catalog's
        memory back."""
        raise NotImplementedError

    def evict(self, scope: EvictScope, now: float, dry_run: bool) -> Evicted:
        raise NotImplementedError

    def expire(self, now: float) -> None:
        """Ends entries and tickets whose time has come. Call it every 100 ms."""
        raise NotImplementedError

    def report_corrupt(self, slot: int, generation: int, now: float) -> bool:
        """Recomputes the checksums of a committed entry and drops it when they differ (True)."""
        raise NotImplementedError

    # -- engines ----------------------------------------------------------------------

    def publish_hbm(
        self,
        owner: OwnerId,
        namespace: int,
        stored: Sequence[BlockKey],
        removed: Sequence[BlockKey],
        cleared: bool,
    ) -> None:
        """Blocks in an engine's own device cache, published as events with tier hbm whose entry
        ids are b"k" + block key. Raises OutOfSpace beyond the bound a connection may publish."""
        raise NotImplementedError

    # -- operating ----------------------------------------------------------------------

    def list_blocks(
        self, *, namespace: bytes | None, key_prefix: bytes, limit: int, cursor: str, now: float
    ) -> EntryPage:
        """Committed entries in slot order. `namespace` b"" selects string entries."""
        raise NotImplementedError

    def explain(self, entry: EntryId) -> Explanation:
        raise NotImplementedError

    def stats(self, now: float) -> Stats:
        raise NotImplementedError

    def audit(self) -> AuditReport:
        raise NotImplementedError

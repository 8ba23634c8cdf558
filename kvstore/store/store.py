"""The store of one node as a plain synchronous class: every decision, no I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat

from moontide.transfer import check_memory
from moontide.transfer.types import Instance

from ..errors import InvalidRequest
from ..keys import BlockKey, EntryId, Namespace
from ..layout import Shard
from ..slots import SlotState
from ..types import Extent, IfExists, Located, PutResult
from .audit import audit
from .catalog import Catalog
from .checks import MAX_ENTRY_TTL_SECONDS, check_chain, check_entries, check_keys, check_ttl
from .clearing import WORTH_GIVING_BACK, clear, give_memory_back
from .contents import Contents
from .counters import Counters
from .coverage import find_prefix
from .entries import DropReason, Entries
from .event_log import EventLog, Holding
from .eviction import SlruPolicy
from .hbm import HbmDirectory
from .inspection import Eviction, Inspection
from .namespaces import Namespaces
from .owners import Owner, Owners
from .pins import Pins
from .placement import Placement
from .pool import Holder, Pool, PoolSegment
from .reservations import Batch, Reservations
from .slot_table import NO_SLOT
from .statistics import tier_stats
from .types import (
    AuditReport,
    BlocksFound,
    EntryPage,
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

    def __init__(self, settings: PoolSettings, instance: Instance, *, now: float = 0.0) -> None:
        """Allocates the whole pool. Raises SegmentUnavailable naming asked and available."""
        check_memory(
            settings.memory_bytes,
            f"a DRAM tier of {settings.dram_bytes} bytes and {settings.max_entries} entries",
        )
        self.settings = settings
        self.instance = instance
        self.events = EventLog(self._holdings)
        ratio = settings.protected_ratio if settings.eviction == "slru" else 0.0
        self._started = now
        self._catalog = Catalog(settings.max_entries)
        try:
            self._pool = Pool(settings, lambda: SlruPolicy(self._catalog.links, ratio))
        except BaseException:
            self._catalog.close()
            raise
        self._namespaces = Namespaces()
        self._owners = Owners()
        self._counters = Counters()
        self._entries = Entries(
            self._catalog,
            self._pool,
            self.events,
            self._counters,
            instance=str(instance),
            namespace_digest=self._namespaces.hex_digest,
            started=now,
        )
        self._contents = Contents(self._catalog, self._pool, self._namespaces)
        self._placement = Placement(self._entries)
        self._reservations = Reservations(self._entries, self._placement)
        self._pins = Pins(self._entries)
        self._hbm = HbmDirectory(self.events)
        self._inspection = Inspection(self._entries, self._namespaces)

    # -- life -------------------------------------------------------------------------

    def close(self) -> None:
        """Gives the pool back. Buffers handed out earlier stay readable until they are dropped."""
        self._catalog.close()
        self._pool.close()

    # -- connections ------------------------------------------------------------------

    def connect(self, owner: OwnerId, client: Instance) -> None:
        self._owners.connect(owner, client)

    def disconnect(self, owner: OwnerId) -> None:
        """Drops the owner's views and hbm blocks and aborts its reservations; those the client
        could write itself stay in quarantine until `client_quiesced` or `client_exited`."""
        if owner in self._owners:
            self._end_owner(self._owners.pop(owner), stopped=False)

    def client_quiesced(self, client: Instance) -> None:
        """No write of the client's earlier connections is running: ends its quarantine."""
        self._reservations.release_quarantine(client)

    def client_exited(self, client: Instance) -> None:
        """The process is gone: ends its quarantine and its grants. Its entries stay."""
        for owner in self._owners.of_client(client):
            self._end_owner(self._owners.pop(owner.id), stopped=True)
        self._reservations.release_quarantine(client)
        for segment in self._pool.end_arena(client):
            self._placement.returned(segment)

    def holds_grants(self, client: Instance) -> bool:
        """Whether the client may still write a segment: until it released all, or has exited."""
        return self._pool.holds_grants(client)

    def release_segment(self, client: Instance, segment: int) -> None:
        """The client has unmapped a granted segment for good."""
        self._check_granted(segment, client)
        for owner in self._owners.of_client(client):
            self._reservations.end_in_segment(owner, segment)
        self._pool.orphan(self._pool.segments[segment])
        self._placement.returned(segment)

    def take_revocations(self, now: float) -> list[Revocation]:
        """Granted segments to ask back now, over any connection of that client."""
        return self._placement.take_revocations(now)

    # -- memory to hand over ------------------------------------------------------------

    @property
    def segment_sizes(self) -> list[int]:
        return [segment.memory.num_bytes for segment in self._pool.segments]

    @property
    def max_entry_bytes(self) -> int:
        return self.settings.segment_bytes

    @property
    def slot_table_descriptor(self) -> int:
        """Read-only. Stays the store's: pass it on, do not close it (so for the next two)."""
        return self._catalog.table.memory.readable_descriptor

    @property
    def slot_table_bytes(self) -> int:
        return self._catalog.table.num_bytes

    def readable_descriptor(self, segment: int) -> int:
        return self._segment(segment).memory.readable_descriptor

    def writable_descriptor(self, segment: int, client: Instance) -> int:
        """Raises InvalidRequest unless the segment is granted to `client`."""
        self._check_granted(segment, client)
        return self._pool.segments[segment].memory.descriptor

    # -- writing ----------------------------------------------------------------------

    def open_namespace(self, namespace: Namespace) -> int:
        """Number of the namespace here; equal namespaces give equal numbers."""
        return self._namespaces.open(namespace)

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
        check_entries(entries, sizes)
        if if_exists not in ("keep", "replace", "error"):
            raise InvalidRequest(f"if_exists is {if_exists!r}; known: keep, replace, error")
        if ttl_s is not None:
            check_ttl("ttl_s", ttl_s, MAX_ENTRY_TTL_SECONDS)
        self._entries.expire_among(entries, now)
        batch = Batch(
            self._owners.get(owner),
            if_exists=if_exists,
            ttl_s=ttl_s,
            soft_pin=soft_pin,
            shared_memory=shared_memory,
        )
        return self._reservations.reserve(batch, entries, sizes, repeat(1, len(entries)), now)

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
        check_chain(keys, shards, parent)
        opened = self._namespaces.get(namespace)
        packed = [shard.pack() for shard in shards]
        shapes = [opened.geometry(shard) for shard in packed]
        opened.stored.update(dict.fromkeys(packed))
        batch = Batch(
            self._owners.get(owner),
            namespace=namespace,
            shared_memory=shared_memory,
            parents=dict(zip(keys, [parent, *keys], strict=False)),
        )
        return self._reservations.reserve(
            batch,
            [b"k" + key + shard for key in keys for shard in packed],
            [shape.num_bytes for shape in shapes] * len(keys),
            [shape.num_extents for shape in shapes] * len(keys),
            now,
        )

    def advance(
        self,
        owner: OwnerId,
        slots: Sequence[int],
        generations: Sequence[int],
        extent: int,
        checksums: Sequence[int],
    ) -> None:
        """Layer `extent` of each reservation is complete. Raises InvalidRequest on one that is
        not the owner's (counted), or out of order; then none has moved."""
        self._reservations.advance(self._owners.get(owner), slots, generations, extent, checksums)

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
        return self._reservations.commit(
            self._owners.get(owner), slots, generations, checksums, now
        )

    def abort(self, owner: OwnerId, slots: Sequence[int], generations: Sequence[int]) -> int:
        """The writer has stopped: frees the space at once. Unknown ones are counted, not errors.
        Returns how many ended."""
        return self._reservations.abort(self._owners.get(owner), slots, generations)

    def buffer(self, slot: int, generation: int) -> memoryview:
        """The entry's bytes in the pool, writable, of a reserved or committed entry. Valid while
        the entry is reserved or pinned; raises InvalidRequest when that generation is gone."""
        return self._contents.buffer(slot, generation)

    def reserved_buffer(self, owner: OwnerId, slot: int, generation: int) -> memoryview:
        """As `buffer`, for the writer of an open reservation. Raises InvalidRequest (counted) to
        anyone else."""
        self._reservations.check_open(self._owners.get(owner), slot, generation)
        return self._contents.buffer(slot, generation)

    def extents(self, slot: int, generation: int) -> list[Extent]:
        """Complete extents of a reserved or committed entry. Raises like `buffer`."""
        return self._contents.extents(slot, generation)

    def watch_extent(
        self, slot: int, generation: int, extent: int, callback: ExtentCallback
    ) -> Callable[[], None]:
        """Calls back once when the watermark passes `extent` or the reservation ends; at once when
        that is already so. Returns a function that cancels. Raises Busy beyond the bound."""
        return self._reservations.watch(slot, generation, extent, callback)

    # -- finding ----------------------------------------------------------------------

    def lookup(
        self, owner: OwnerId, entries: Sequence[EntryId], pin_s: float | None, now: float
    ) -> tuple[list[Located | None], bytes]:
        """One `Located` or None an entry, and a ticket (b"" without a pin or a hit). `pin_s`: None
        no pin, 0 a view that ends with its owner, > 0 a ticket with that TTL. Raises OutOfSpace
        when the client would pin more than its share."""
        requester = self._owners.get(owner)
        if pin_s is None:
            return self._find(entries, lambda hits: b"", now)
        return self._find(entries, lambda hits: self._pins.take(requester, hits, pin_s, now), now)

    def lookup_to_send(
        self, owner: OwnerId, entries: Sequence[EntryId], now: float
    ) -> tuple[list[Located | None], bytes]:
        """As `lookup`, for bytes that leave straight from the pool: one entry may always be on its
        way to a client. Raises OutOfSpace for more than its share."""
        requester = self._owners.get(owner)
        return self._find(entries, lambda hits: self._pins.take_to_send(requester, hits), now)

    def _find(
        self, entries: Sequence[EntryId], pin: Callable[[list[int]], bytes], now: float
    ) -> tuple[list[Located | None], bytes]:
        self._entries.expire_among(entries, now)
        committed, counters = self._catalog.committed, self._counters
        slots = [committed.get(entry) for entry in entries]
        hits = [slot for slot in slots if slot is not None]
        ticket = pin(hits) if hits else b""
        self._entries.touch(hits, now)
        found = [None if slot is None else self._contents.locate(slot) for slot in slots]
        counters.hits += len(hits)
        counters.misses += len(slots) - len(hits)
        counters.bytes_out += sum([located.length for located in found if located is not None])
        return found, ticket

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
        """Longest prefix of `keys` whose stored shards cover `coverage`, no longer than what the
        client may pin; see `lookup` for pins, of which one block must fit. `pending` also counts
        reservations still being written."""
        check_chain(keys, coverage)
        requester = self._owners.get(owner)
        opened = self._namespaces.get(namespace)
        wanted = [shard.pack() for shard in coverage]
        for shard in wanted:
            opened.geometry(shard)
        found = find_prefix(
            self._catalog, opened, keys, wanted, self._catalog.pending if pending else {}
        )
        ticket = b""
        if pin_s is not None and found.slots:
            room = self._pins.room(requester, found.slots)
            found = found.within(max(room, len(found.blocks[0])))
            ticket = self._pins.take(requester, found.slots, pin_s, now)
        self._entries.touch(reversed(found.slots), now)
        self._counters.hits += len(found.slots)
        self._counters.misses += (len(keys) - len(found.blocks)) * len(wanted)
        checksums = self._contents.checksums(found.slots)
        return BlocksFound(found.blocks, found.shards, checksums, ticket)

    def exists(self, entries: Sequence[EntryId], now: float) -> list[bool]:
        self._entries.expire_among(entries, now)
        committed = self._catalog.committed
        return [entry in committed for entry in entries]

    def unpin(self, owner: OwnerId, ticket: bytes, read_bytes: int = 0) -> None:
        """Ends a view of this owner, or a ticket of anyone; `read_bytes` were read under it. Raises
        InvalidRequest (counted) on an unknown one or another owner's view."""
        self._pins.release(self._owners.get(owner), ticket)
        self._counters.bytes_out += read_bytes

    def renew(self, ticket: bytes, ttl_s: float, now: float) -> None:
        """Raises InvalidRequest on an unknown or expired ticket, or a view."""
        self._pins.expire(now)
        self._pins.renew(ticket, ttl_s, now)

    # -- ending -----------------------------------------------------------------------

    def remove(self, entries: Sequence[EntryId], now: float) -> int:
        """Number removed. A pinned one is a miss from now on; its space stays until unpinned."""
        self._entries.expire_among(entries, now)
        slots = {self._catalog.committed.get(entry, NO_SLOT) for entry in entries} - {NO_SLOT}
        self._entries.drop(list(slots), DropReason.REMOVED)
        self._counters.removals += len(slots)
        return len(slots)

    def clear(self, namespace: bytes | None, strings_only: bool, now: float) -> int:
        """Removes a namespace (digest), all string entries, or everything, and gives the catalog's
        memory back."""
        removed = clear(self._entries, self._namespaces, namespace, strings_only)
        self._counters.removals += removed
        if removed >= WORTH_GIVING_BACK:
            give_memory_back(self._entries)
        return removed

    def evict(self, scope: EvictScope, now: float) -> Eviction:
        """What would go; it goes when the caller carries it out."""
        self.expire(now)
        return self._inspection.plan_eviction(scope, now)

    def expire(self, now: float) -> bool:
        """Ends tickets and up to MAX_EXPIRED_AT_ONCE entries whose time has come; true when more
        are due. Call it every 100 ms, and soon again when it says so."""
        self._pins.expire(now)
        return self._entries.expire(now)

    def report_corrupt(self, slot: int, generation: int) -> bool:
        """Recomputes the checksums of a committed entry and drops it when they differ (True)."""
        if self._catalog.find(slot, generation) != SlotState.COMMITTED:
            return False
        if self._contents.is_intact(slot, generation):
            return False
        if self._catalog.committed.get(self._catalog.entry(slot)) == slot:
            self._entries.drop([slot], DropReason.CORRUPT)
        self._counters.corrupt += 1
        return True

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
        opened, client = self._namespaces.get(namespace), self._owners.get(owner).client
        check_keys((*stored, *removed))
        if cleared:
            self._hbm.clear(owner, opened)
        self._hbm.discard(owner, opened, removed)
        self._hbm.add(owner, client, opened, stored)

    # -- operating ----------------------------------------------------------------------

    def list_blocks(
        self, *, namespace: bytes | None, key_prefix: bytes, limit: int, cursor: str, now: float
    ) -> EntryPage:
        """Committed entries in slot order. `namespace` b"" selects string entries."""
        return self._inspection.page(
            namespace=namespace, key_prefix=key_prefix, limit=limit, cursor=cursor, now=now
        )

    def explain(self, entry: EntryId) -> Explanation:
        return self._inspection.explain(entry)

    def stats(self, now: float) -> Stats:
        counters, pool = self._counters, self._pool
        return Stats(
            instance=str(self.instance),
            tiers=tier_stats(self._entries, len(self._hbm)),
            pins=counters.num_pins,
            tickets=len(self._pins),
            in_flight=len(self._reservations),
            quarantined=self._reservations.num_quarantined,
            clients=len(self._owners),
            namespaces=len(self._namespaces),
            segments=len(pool.segments),
            segments_granted=pool.num_held(Holder.GRANTED),
            segments_orphaned=pool.num_held(Holder.ORPHANED),
            segments_free=pool.num_held(Holder.FREE),
            refused_puts=counters.refused_puts,
            double_releases=counters.double_releases,
            stale_notices=counters.stale_notices,
            hbm_blocks=len(self._hbm),
            events_seq=self.events.seq,
            uptime_s=now - self._started,
        )

    def audit(self) -> AuditReport:
        return audit(self._entries, self._reservations, self._pins)

    # -- inside -------------------------------------------------------------------------

    def _end_owner(self, owner: Owner, *, stopped: bool) -> None:
        self._pins.end_owner(owner)
        self._reservations.end_owner(owner, stopped=stopped)
        self._hbm.end_owner(owner.id)

    def _segment(self, index: int) -> PoolSegment:
        if not 0 <= index < len(self._pool.segments):
            raise InvalidRequest(f"segment {index}; there are {len(self._pool.segments)}")
        return self._pool.segments[index]

    def _check_granted(self, index: int, client: Instance) -> None:
        segment = self._segment(index)
        if (
            segment.holder is not Holder.GRANTED
            or segment.arena is None
            or segment.arena.client != client
        ):
            raise InvalidRequest(f"segment {index} is not granted to {client}")

    def _holdings(self) -> list[Holding]:
        return [*self._entries.holdings(), *self._hbm.holdings()]

"""What a store is made of, its connections, and the memory it hands over."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain

from moontide.transfer import check_memory
from moontide.transfer.types import PAGE_BYTES, Instance

from ..errors import InvalidRequest
from .admission import Admission
from .catalog import Catalog
from .contents import Contents
from .counters import Counters
from .entries import Entries
from .event_log import EventLog, Holding
from .eviction import POLICIES
from .hbm import HbmDirectory
from .inspection import Inspection
from .namespaces import Namespaces
from .owners import Owner, Owners
from .pins import Pins
from .placement import Placement
from .pool import Holder, Pool, PoolSegment
from .quarantine import Quarantine
from .refusals import Refusals
from .reservations import Reservations
from .retiring import Retiring
from .room import Room
from .runs import Runs
from .shares import Shares
from .tenants import Tenants
from .types import OwnerId, PoolSettings, Revocation

MAX_RUN_BYTES = 8 << 20
RUNS_IN_SEGMENT = 8


class StoreParts:
    """Everything a store consists of, put together."""

    def __init__(self, settings: PoolSettings, instance: Instance, *, now: float = 0.0) -> None:
        """Allocates the whole pool. Raises SegmentUnavailable naming asked and available."""
        check_memory(
            settings.memory_bytes,
            f"a DRAM tier of {settings.dram_bytes} bytes and {settings.max_entries} entries",
        )
        self.settings = settings
        self.instance = instance
        self.events = EventLog(self._holdings)
        new_policy = POLICIES[settings.eviction]
        self._started = now
        self._catalog = Catalog(settings.max_entries)
        try:
            self._pool = Pool(
                settings, lambda: new_policy(self._catalog.links, settings.protected_ratio)
            )
        except BaseException:
            self._catalog.close()
            raise
        self._namespaces = Namespaces()
        self._owners = Owners(instance)
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
        room = Room(self._entries, self._placement)
        shares = Shares.of(settings, settings.max_reserved_ratio)
        refusals = Refusals(self._pool, self._counters, shares)
        self._quarantine = Quarantine(self._entries, shares)
        self._reservations = Reservations(self._entries, room, shares, refusals, self._quarantine)
        self._runs = Runs(self._entries, self._placement, room, shares, refusals, self._quarantine)
        self._reserved = shares
        self._refusals = refusals
        self._pins = Pins(self._entries)
        self._admission = Admission(self._catalog)
        self._tenants = Tenants(self._entries, self._namespaces)
        self._retiring = Retiring(self._entries, self._reservations, self._namespaces)
        self._hbm = HbmDirectory(self.events)
        self._beyond: Callable[[], Iterable[Holding]] = list
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
        self._quarantine.release(client)

    def client_exited(self, client: Instance) -> None:
        """The process is gone: ends its quarantine and its grants. Its entries stay."""
        for owner in self._owners.of_client(client):
            self._end_owner(self._owners.pop(owner.id), stopped=True)
        self._quarantine.release(client)
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
            self._runs.end_in_segment(owner, segment)
        self._pool.orphan(self._pool.segments[segment])
        self._placement.returned(segment)

    def take_revocations(self, now: float) -> list[Revocation]:
        """Granted segments to ask back now, over any connection of that client."""
        return self._placement.take_revocations(now)

    # -- memory to hand over ------------------------------------------------------------

    @property
    def used_bytes(self) -> int:
        """What live entries occupy in DRAM."""
        return self._pool.used_bytes

    @property
    def segment_sizes(self) -> list[int]:
        return [segment.memory.num_bytes for segment in self._pool.segments]

    def segment_view(self, segment: int) -> memoryview:
        """Its bytes, read-only. Whoever keeps the view keeps the memory mapped."""
        return self._segment(segment).memory.buffer.toreadonly()

    @property
    def max_entry_bytes(self) -> int:
        return self.settings.segment_bytes

    @property
    def run_bytes(self) -> int:
        """What clients should ask for as a run; 0 where segments are too small for any."""
        return min(
            MAX_RUN_BYTES, self.settings.segment_bytes // RUNS_IN_SEGMENT // PAGE_BYTES * PAGE_BYTES
        )

    def beat(self, now: float) -> None:
        """Tells clients, through the slot table, that the store is well at `now`. Call it every
        100 ms."""
        self._catalog.table.beat(int(now * 1000))

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

    # -- inside -------------------------------------------------------------------------

    def _end_owner(self, owner: Owner, *, stopped: bool) -> None:
        self._pins.end_owner(owner)
        self._reservations.end_owner(owner, stopped=stopped)
        self._runs.end_owner(owner, stopped=stopped)
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

    def _holdings(self) -> Iterable[Holding]:
        return chain(self._entries.holdings(), self._hbm.holdings(), self._beyond())

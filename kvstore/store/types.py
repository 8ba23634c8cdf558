"""Values that go into and come out of the store's core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple, get_args

import msgspec

from moontide.transfer.types import PAGE_BYTES, Instance

from ..errors import InvalidRequest
from ..keys import EntryId
from ..types import IfExists, ReserveStatus, Tier
from ..wire import BlockEntry
from .eviction.names import PROTECTED_RATIO, EvictionName

OwnerId = int
"""One connection, as the daemon numbers them. What an owner reserved or pinned ends with it."""
ExtentCallback = Callable[[bool], None]
"""True: the extent is complete. False: the reservation ended before it was."""

FILL_OWNER: OwnerId = 0
"""The store's own: fills are reserved by it. Connections are numbered from 1 on."""
LOCAL_TRANSPORT = "shm"
"""How a client on this machine gets what lies in this node's DRAM."""
REMOTE_TRANSPORT = "tcp"
"""How it comes from another node's store."""

MAX_POOL_ENTRIES = (1 << 32) - 2
MAX_SEGMENTS = 1 << 16
ENTRY_MEMORY_BYTES = 300
"""What an entry with a short key costs beyond its bytes: slot, key, columns (a test holds us to
it)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """Sizes of the DRAM tier. `dram_bytes` is rounded down to whole segments; the largest entry is
    one segment. `protected_ratio` is what slru and cost_aware keep for entries hit twice;
    `max_pin_ratio` is the share of the tier (its bytes, its entries) that one client process may
    pin, `max_total_pin_ratio` what all may together; `max_reserved_ratio` is the share that one may
    have reserved and not committed, quarantine included (all fills together count as one client).
    A larger `max_pin_ratio` wins over the total."""

    dram_bytes: int
    segment_bytes: int
    max_entries: int
    eviction: EvictionName = "slru"
    protected_ratio: float = PROTECTED_RATIO
    max_pin_ratio: float = 0.25
    max_total_pin_ratio: float = 0.75
    max_reserved_ratio: float = 0.5

    def __post_init__(self) -> None:
        if self.segment_bytes < PAGE_BYTES or self.segment_bytes % PAGE_BYTES:
            raise InvalidRequest(
                f"segment_bytes is {self.segment_bytes}; it must be a multiple of {PAGE_BYTES}"
            )
        if not 1 <= self.num_segments <= MAX_SEGMENTS:
            fixes = ("raise", "lower") if self.num_segments else ("lower", "raise")
            raise InvalidRequest(
                f"dram_bytes is {self.dram_bytes}, which makes {self.num_segments} segments of "
                f"{self.segment_bytes} bytes; a pool has 1..{MAX_SEGMENTS}: "
                f"{fixes[0]} segment_bytes (--segment) or {fixes[1]} dram_bytes (--dram)"
            )
        if not 1 <= self.max_entries <= MAX_POOL_ENTRIES:
            raise InvalidRequest(
                f"max_entries is {self.max_entries}; it must lie in 1..{MAX_POOL_ENTRIES}"
            )
        known = get_args(EvictionName)
        if self.eviction not in known:
            raise InvalidRequest(f"eviction is {self.eviction!r}; known: {', '.join(known)}")
        for name, ratio in (
            ("protected_ratio", self.protected_ratio),
            ("max_pin_ratio", self.max_pin_ratio),
            ("max_total_pin_ratio", self.max_total_pin_ratio),
            ("max_reserved_ratio", self.max_reserved_ratio),
        ):
            if not 0 <= ratio <= 1:
                raise InvalidRequest(f"{name} is {ratio}; it must lie in 0..1")

    @property
    def num_segments(self) -> int:
        return self.dram_bytes // self.segment_bytes

    @property
    def capacity_bytes(self) -> int:
        return self.num_segments * self.segment_bytes

    @property
    def memory_bytes(self) -> int:
        """What the pool and a full catalog take."""
        return self.capacity_bytes + self.max_entries * ENTRY_MEMORY_BYTES


class ReserveResult(NamedTuple):
    """What one entry of a reserve got. Place fields are 0 unless RESERVED. `writable`: the client
    may map the segment writable; otherwise it sends the bytes (Write)."""

    status: ReserveStatus
    slot: int = 0
    generation: int = 0
    segment: int = 0
    offset: int = 0
    writable: bool = False
    reason: str = ""


class Pieces(NamedTuple):
    """Where entries lie in their run and what they sum up to: u64 LE, as many of each."""

    entries: Sequence[bytes]
    offsets: bytes  # from the run's base
    sizes: bytes
    checksums: bytes


class RunOptions(NamedTuple):
    """As of a put."""

    if_exists: IfExists = "keep"
    ttl_s: float | None = None
    soft_pin: bool = False
    elsewhere: AbstractSet[bytes] = frozenset()  # entries that another tier holds


class RunResult(NamedTuple):
    """Fields of `wire.RunReply` in its order, and the entries that were STORED."""

    statuses: bytes
    slots: bytes
    generations: bytes
    reason: str
    stored: Sequence[bytes]


class LayerRun(NamedTuple):
    """Complete layers of one reservation, from `first` on, with the checksum of each."""

    slot: int
    generation: int
    first: int
    checksums: Sequence[int]


class Purpose(NamedTuple):
    """What an open reservation is for."""

    entry: EntryId
    if_exists: IfExists
    replicas: int  # wanted in the cluster


class Origin(NamedTuple):
    """Where a fill's bytes come from, and how. Kept only while it fills."""

    tier: Tier
    transport: str  # "file", "tcp", …
    peer: str = ""  # node whose pool they lie in, if it is another

    @property
    def is_local(self) -> bool:
        """Whether this node has it all, and waits for nobody."""
        return self.transport != REMOTE_TRANSPORT


class BlocksFound(NamedTuple):
    """Fields of `wire.BlocksReply`, in its order."""

    blocks: list[list[BlockEntry]]
    shards: list[bytes]
    checksums: bytes
    ticket: bytes
    transports: list[str]
    peers: list[str]


class Revocation(NamedTuple):
    """A granted segment that the pool wants back from a live client."""

    client: Instance
    segment: int


class EvictScope(msgspec.Struct, frozen=True, kw_only=True):
    """Which entries an eviction may take; all given conditions must hold. `num_bytes` stops once
    so much is free; None takes all that match. Pinned entries stay."""

    namespace: bytes | None = None  # digest
    strings_only: bool = False
    entries: tuple[bytes, ...] | None = None  # entry ids, or b"k" + block key for all its shards
    key_prefix: bytes = b""  # of the block key or the string key
    older_than_s: float | None = None
    num_bytes: int | None = None


class Evicted(msgspec.Struct, frozen=True):
    entries: int
    num_bytes: int
    tokens: int


class EntryInfo(msgspec.Struct, frozen=True):
    """One entry as the admin interface shows it. `key` is `kv:HEX` or `s:PERCENT-ENCODED`."""

    key: str
    tier: str
    num_bytes: int
    namespace: str = ""  # digest, hex
    shard: str = ""  # packed, hex
    pins: int = 0
    idle_s: float = 0.0


class EntryPage(msgspec.Struct, frozen=True):
    entries: list[EntryInfo]
    cursor: str = ""  # give it back for the next page; empty: that was all


class Explanation(msgspec.Struct, frozen=True):
    """Why an entry is here or not. `state`: committed, reserved, dropped or unknown. Of what is
    here `replicas`, as many as are wanted (0: nobody said), and the `nodes` that have one."""

    key: str
    state: str
    reason: str
    replicas: int = 0
    nodes: tuple[str, ...] = ()


class TierStats(msgspec.Struct, frozen=True):
    """Sizes in bytes. `used_bytes` is what live entries occupy (committed, reserved, removed but
    still pinned, quarantined); the counters only grow."""

    capacity_bytes: int = 0
    used_bytes: int = 0
    pinned_bytes: int = 0
    reserved_bytes: int = 0
    quarantined_bytes: int = 0
    largest_free_bytes: int = 0
    entries: int = 0
    flushed: int = 0  # of them, those that a kill does not take
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    evicted_unflushed: int = 0  # of them, those that no colder tier held
    expirations: int = 0
    removals: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    corrupt: int = 0
    disk_errors: int = 0


class Stats(msgspec.Struct, frozen=True):
    """Body of `GET /v1/stats`, without what only the daemon knows."""

    instance: str
    tiers: dict[str, TierStats]
    pins: int  # pinned entries, each counted once a holder
    tickets: int  # holders: views and tickets
    in_flight: int  # reservations of entries, fills included
    fills: int  # reservations of the store's own, filled from another tier or node
    request_scoped: int  # blocks of one request, being written or committed
    quarantined: int  # reservations of vanished writers
    clients: int  # connections
    namespaces: int
    segments: int
    segments_granted: int
    segments_orphaned: int
    segments_free: int
    refused_puts: int
    not_admitted: int  # entries that store admission turned away
    double_releases: int
    stale_notices: int  # commits, advances, aborts of unknown or finished reservations
    hbm_blocks: int
    events_seq: int
    uptime_s: float
    runs: int = 0  # stretches that clients cut entries from


class AuditReport(msgspec.Struct, frozen=True):
    """What `audit` counted by walking allocators, catalog, slots and pins, and each difference from
    the running accounts. Invariant 5 holds when `differences` is empty."""

    differences: list[str]
    entries: int
    used_bytes: int
    pins: int
    in_flight: int
    quarantined: int
    fills: int = 0
    request_scoped: int = 0

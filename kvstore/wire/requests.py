"""What a client asks of a store."""

from __future__ import annotations

from typing import Literal

import msgspec

from .message import Message


class Hello(Message, frozen=True, tag=1):
    oldest_version: int
    newest_version: int
    client: str  # Instance of the client process; its connections share grants
    boot_id: str
    quiesced: bool  # no write of this client's earlier connections is still running
    proof: bytes = b""  # TCP only


class Put(Message, frozen=True, tag=2):
    """Payload: the values, concatenated; then, where `checksums` is empty (Welcome tells whether
    it may be), theirs, u64 LE each. Answer: PutReply."""

    entries: list[bytes]
    sizes: list[int]
    checksums: list[int]  # xxh3-64 of each value, computed by the producer
    if_exists: Literal["keep", "replace", "error"] = "keep"
    ttl_s: float | None = None
    soft_pin: bool = False
    replicas: int = 1  # complete copies wanted, on as many nodes


class Reserve(Message, frozen=True, tag=3):
    """Space for single-extent entries that the client then writes itself. Answer: Reserved."""

    entries: list[bytes]
    sizes: list[int]
    if_exists: Literal["keep", "replace", "error"] = "keep"
    ttl_s: float | None = None
    soft_pin: bool = False
    replicas: int = 1


class ReserveBlocks(Message, frozen=True, tag=4):
    """Space for every (block, shard), in block-major order. With `request_scoped` the keys are
    random, no hashes of content: such blocks are found by their key only, are told to nobody, stay
    in DRAM, and end when a reader that pinned them is done, or after `ttl_s`. `replicas`: complete
    copies wanted, on as many nodes; they are made after the commit, which does not wait for them.
    Answer: Reserved."""

    namespace: int
    keys: bytes  # 16 bytes a block
    parent: bytes  # key of the block before the first, or empty
    shards: list[bytes]  # packed
    ttl_s: float | None = None  # from their commit; needed with request_scoped
    request_scoped: bool = False
    replicas: int = 1


class Write(Message, frozen=True, tag=5):
    """Bytes for a reservation whose segment the client cannot write. Payload: the bytes. Answer:
    Ok."""

    slot: int
    generation: int
    offset: int  # within the entry


class Advance(Message, frozen=True, tag=6):
    """Layer `extent` of each reservation is complete. Extents complete in order. Answer: Ok."""

    slots: list[int]
    generations: list[int]
    extent: int
    checksums: list[int]


class Commit(Message, frozen=True, tag=7):
    """`checksums` for single-extent entries; empty when every extent was advanced. Answer:
    PutReply."""

    slots: list[int]
    generations: list[int]
    checksums: list[int]


class Abort(Message, frozen=True, tag=8):
    """The writer has stopped: the space is free at once. Answer: Ok."""

    slots: list[int]
    generations: list[int]


class Lookup(Message, frozen=True, tag=9):
    """`pin_s`: None no pin; 0 a pin that ends with its release or this connection; > 0 a ticket
    with that TTL. A pin is taken only on what was found. Answer: LookupReply."""

    entries: list[bytes]
    pin_s: float | None = None
    local_only: bool = False  # as peers ask each other
    floor: int = 0  # between nodes: of the string entries, as the asker knows it
    replicas: int = 0  # between nodes: so many are wanted in all


class LookupBlocks(Message, frozen=True, tag=10):
    """Longest prefix of `keys` whose blocks cover `coverage`, in this node's tiers and, unless
    `local_only`, in other nodes' too: what does not lie in DRAM is brought there, and counts as
    soon as its place is reserved. With `local_only` that holds for what comes from this node's
    disk: stores that offered each other what they are still being sent could wait for each other.
    `pending` also counts reservations that a client still writes (for layer streams). `wait_s`: how
    long the answer may wait for the first key to appear. `timeout_s`: what disk and other nodes
    have not said within it does not count (None: as long as the daemon thinks right). `held`: a
    ticket that pins some of them already, which is no new use of those. Answer: BlocksReply."""

    namespace: int
    keys: bytes
    coverage: list[bytes]  # packed shards
    pin_s: float | None = None
    pending: bool = False
    local_only: bool = False  # as peers ask each other
    wait_s: float = 0.0
    timeout_s: float | None = None
    floor: int = 0  # between nodes: the namespace's, as the asker knows it
    held: bytes = b""


class Get(Message, frozen=True, tag=11):
    """Answer: GetReply with the values as payload."""

    entries: list[bytes]


class Read(Message, frozen=True, tag=12):
    """Extents through the socket, for clients without shared memory. Of what no ticket pins, only
    what a look-up would still find. Answer: GetReply."""

    slots: list[int]
    generations: list[int]
    extents: list[int]
    is_pinned: bool = True


class Exists(Message, frozen=True, tag=13):
    """Answer: ExistsReply."""

    entries: list[bytes]
    local_only: bool = False  # as peers ask each other
    floor: int = 0  # between nodes: of the string entries, as the asker knows it


class Remove(Message, frozen=True, tag=14):
    """String entries, and blocks in all of their shards (named by their key, with a shard or
    without), go from every node. Between nodes (`fence_s`): > 0 from this one, which takes in no
    copies of them for so long; 0 ends that. `known`: the stores (instances) that the asker knows,
    itself among them; Busy where there is another. `namespaces`: digests of all that the blocks
    are of; where none is named, those that are found count. Answer: CountReply."""

    entries: list[bytes]
    fence_s: float | None = None
    known: list[str] = msgspec.field(default_factory=list)
    namespaces: list[bytes] = msgspec.field(default_factory=list)
    numbers: list[int] = msgspec.field(default_factory=list)  # with fence_s 0: of this removal


class Clear(Message, frozen=True, tag=15):
    """All string entries, or all blocks of one namespace (digest), or (both None/False) everything:
    at every node that can be asked now, and at the others once they read the membership, those that
    are away before they serve again; or (`local_only`) at this node. Answer: CountReply, of what
    went here."""

    namespace: bytes | None = None
    strings_only: bool = False
    local_only: bool = False


class Unpin(Message, frozen=True, tag=16):
    """`read_bytes`: what was read under this ticket; from shared memory the daemon sees nothing of
    it. Answer: Ok."""

    ticket: bytes
    read_bytes: int = 0


class RenewTicket(Message, frozen=True, tag=17):
    ticket: bytes
    ttl_s: float


class MapSegment(Message, frozen=True, tag=18):
    """Answer: SegmentReply with one descriptor. `writable` only for a segment granted to this
    client."""

    segment: int
    writable: bool = False


class OpenNamespace(Message, frozen=True, tag=19):
    """Answer: NamespaceReply. Refused with LayoutMismatch when `digest` is not that of the
    fields."""

    digest: bytes
    weights_id: str
    tokenizer_digest: str
    block_tokens: int
    rope_scaling: str
    adapter_digest: str
    salt: str
    groups: list[tuple[str, int, int, int, str, int | None, int | None]]  # Group's fields in order


class AwaitExtent(Message, frozen=True, tag=20):
    """Answered (Ok) when the watermark passes `extent`, or with Failure when the reservation ends
    or `timeout_s` does."""

    slot: int
    generation: int
    extent: int
    timeout_s: float


class PublishHbm(Message, frozen=True, tag=21):
    """What an engine's own device cache gained and lost: advisory, ends with the connection.
    Answer: Ok."""

    namespace: int
    stored: bytes  # 16 bytes a block
    removed: bytes
    cleared: bool = False


class ReportCorrupt(Message, frozen=True, tag=22):
    """A reader found bytes that do not match. The daemon checks for itself and drops the entry if
    so. Answer: Ok."""

    slot: int
    generation: int


class ReleaseSegment(Message, frozen=True, tag=23):
    """The client has unmapped a granted segment for good. Answer: Ok."""

    segment: int


class GetStats(Message, frozen=True, tag=24):
    """Answer: StatsReply."""


class AwaitExtents(Message, frozen=True, tag=25):
    """As AwaitExtent, for one extent of many entries at once: answered (ExtentsReply) when each
    has passed it or has ended; with Failure after `timeout_s`."""

    slots: list[int]
    generations: list[int]
    extent: int
    timeout_s: float


class FetchBlocks(Message, frozen=True, tag=26):
    """For a hand-off: every block of `keys`, at once. Those that are here count as they are; all
    others are reserved here and filled layer by layer from store `source` (an instance), where
    they may still have to be written. The last `num_request_scoped` keys are request-scoped.
    What has not come within `timeout_s` ends; who waits for its extents hears of it. Answer:
    BlocksReply, shorter than `keys` when the pool has no room for all."""

    namespace: int
    keys: bytes
    coverage: list[bytes]
    source: str
    pin_s: float
    timeout_s: float
    num_request_scoped: int = 0


class ReserveRun(Message, frozen=True, tag=27):
    """Since version 2. A stretch of a segment granted to this client, from which it cuts string
    entries itself (CommitRun). Ends like any reservation: Abort, or its connection. Answer:
    Reserved, with one result; FULL when no segment can be granted: then Reserve or Put."""

    num_bytes: int


class CommitRun(Message, frozen=True, tag=28):
    """Since version 2. Entries whose bytes lie in a run: visible with the answer. Offsets are from
    the run's start, ascending, aligned as sizes ask (4 KiB from 4 KiB on, else 64 bytes), and
    behind all that was committed from this run before; what is skipped is free again. Answer:
    RunReply."""

    slot: int  # of the run
    generation: int
    entries: list[bytes]
    offsets: bytes  # u64 LE each
    sizes: bytes  # u64 LE each
    checksums: bytes  # u64 LE each: xxh3-64; 0 where the producer made none
    if_exists: Literal["keep", "replace", "error"] = "keep"
    ttl_s: float | None = None
    soft_pin: bool = False
    replicas: int = 1


class NoteUse(Message, frozen=True, tag=29):
    """Since version 2; never answered. What this client has read without asking (touched and
    counted like a lookup's hits; generations that are gone are skipped), and tickets of which it
    releases the pins (see Unpin). An empty one announces a request: the daemon may wake up."""

    slots: bytes  # u32 LE each
    generations: bytes  # u32 LE each
    read_bytes: int = 0
    tickets: list[bytes] = msgspec.field(default_factory=list)

    @property
    def is_announcement(self) -> bool:
        return not (self.slots or self.tickets)


class Prefetch(Message, frozen=True, tag=30):
    """Begins to bring string entries from disk or other nodes to DRAM, pins nothing, and answers at
    once. What has not come within `timeout_s` ends. Answer: CountReply, those here or coming."""

    entries: list[bytes]
    timeout_s: float = 1.0
    tier: Literal["dram"] = "dram"


class PrefetchBlocks(Message, frozen=True, tag=31):
    """As Prefetch, for leading blocks of a chain. Answer: CountReply, leading blocks that are here
    or come from this node's disk; more may come from other nodes."""

    namespace: int
    keys: bytes
    coverage: list[bytes]
    timeout_s: float = 1.0
    tier: Literal["dram"] = "dram"
    replicas: int = 0  # between nodes: so many are wanted in all


class ReadFloors(Message, frozen=True, tag=32):
    """Between nodes: a floor was raised in the membership. Answer: Ok, once what it says is in
    force here."""


class Locate(Message, frozen=True, tag=33):
    """Since version 2. As Lookup without a pin, for who has the slot table mapped: it holds what
    else there is to know of string entries. Answer: LocateReply."""

    entries: list[bytes]


Request = (
    Hello
    | Put
    | Reserve
    | ReserveBlocks
    | Write
    | Advance
    | Commit
    | Abort
    | Lookup
    | LookupBlocks
    | Get
    | Read
    | Exists
    | Remove
    | Clear
    | Unpin
    | RenewTicket
    | MapSegment
    | OpenNamespace
    | AwaitExtent
    | PublishHbm
    | ReportCorrupt
    | ReleaseSegment
    | GetStats
    | AwaitExtents
    | FetchBlocks
    | ReserveRun
    | CommitRun
    | NoteUse
    | Prefetch
    | PrefetchBlocks
    | ReadFloors
    | Locate
)

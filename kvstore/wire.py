"""Messages between clients and the store daemon, and their framing.

frame  = header ‖ body ‖ payload
header = magic "MT" | version u8 | flags u8 | request id u32 | body length u32 |
         payload length u64   (20 bytes, LE)
body   = msgpack of one tagged message; payload = raw bytes, never copied into the body.

Lengths are checked against their bounds before anything is allocated. A reply carries its request's
id. Over a unix socket descriptors travel with the first byte of the reply that announces them
(Welcome: slot table; SegmentReply).

A connection is: Hello → Welcome, then any requests, pipelined. Over TCP the HMAC challenge comes
first: Challenge (server speaks first) → Hello with `proof` = HMAC-SHA256(token, nonce ‖ client id).
Unknown or malformed bytes end the connection; nothing else does.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import Literal, NamedTuple, TypeVar

import msgspec

from .errors import InvalidRequest

WIRE_VERSION = 1
OLDEST_VERSION = 1
MAGIC = b"MT"
HEADER = struct.Struct("<2sBBIIQ")
MAX_BODY_BYTES = 8 << 20
MAX_PAYLOAD_BYTES = 1 << 32
MAX_KEYS = 16384
"""Most keys one message may name."""
MAX_REPLICAS = 16
"""Most complete copies that a put may ask for."""


class _Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    pass


# -- requests ---------------------------------------------------------------------


class Hello(_Message, frozen=True, tag=1):
    oldest_version: int
    newest_version: int
    client: str  # Instance of the client process; its connections share grants
    boot_id: str
    quiesced: bool  # no write of this client's earlier connections is still running
    proof: bytes = b""  # TCP only


class Put(_Message, frozen=True, tag=2):
    """Payload: the values, concatenated. Answer: PutReply."""

    entries: list[bytes]
    sizes: list[int]
    checksums: list[int]  # xxh3-64 of each value, computed by the producer
    if_exists: Literal["keep", "replace", "error"] = "keep"
    ttl_s: float | None = None
    soft_pin: bool = False
    replicas: int = 1  # complete copies wanted, on as many nodes


class Reserve(_Message, frozen=True, tag=3):
    """Space for single-extent entries that the client then writes itself. Answer: Reserved."""

    entries: list[bytes]
    sizes: list[int]
    if_exists: Literal["keep", "replace", "error"] = "keep"
    ttl_s: float | None = None
    soft_pin: bool = False
    replicas: int = 1


class ReserveBlocks(_Message, frozen=True, tag=4):
    """Space for every (block, shard), in block-major order. With `request_scoped` the keys are
    random, no hashes of content: such blocks are found by their key only, are told to nobody, stay
    in DRAM, and end when a reader that pinned them is done, or after `ttl_s`. Answer: Reserved."""

    namespace: int
    keys: bytes  # 16 bytes a block
    parent: bytes  # key of the block before the first, or empty
    shards: list[bytes]  # packed
    ttl_s: float | None = None  # from their commit; needed with request_scoped
    request_scoped: bool = False


class Write(_Message, frozen=True, tag=5):
    """Bytes for a reservation whose segment the client cannot write. Payload: the bytes. Answer:
    Ok."""

    slot: int
    generation: int
    offset: int  # within the entry


class Advance(_Message, frozen=True, tag=6):
    """Layer `extent` of each reservation is complete. Extents complete in order. Answer: Ok."""

    slots: list[int]
    generations: list[int]
    extent: int
    checksums: list[int]


class Commit(_Message, frozen=True, tag=7):
    """`checksums` for single-extent entries; empty when every extent was advanced. Answer:
    PutReply."""

    slots: list[int]
    generations: list[int]
    checksums: list[int]


class Abort(_Message, frozen=True, tag=8):
    """The writer has stopped: the space is free at once. Answer: Ok."""

    slots: list[int]
    generations: list[int]


class Lookup(_Message, frozen=True, tag=9):
    """`pin_s`: None no pin; 0 a pin that ends with its release or this connection; > 0 a ticket
    with that TTL. A pin is taken only on what was found. Answer: LookupReply."""

    entries: list[bytes]
    pin_s: float | None = None
    local_only: bool = False  # as peers ask each other


class LookupBlocks(_Message, frozen=True, tag=10):
    """Longest prefix of `keys` whose blocks cover `coverage`, in this node's tiers and, unless
    `local_only`, in other nodes' too: what does not lie in DRAM is brought there, and counts as
    soon as its place is reserved. `pending` also counts reservations that a client still writes
    (for layer streams). `wait_s`: how long the answer may wait for the first key to appear.
    `timeout_s`: what disk and other nodes have not said within it does not count (None: as long as
    the daemon thinks right). Answer: BlocksReply."""

    namespace: int
    keys: bytes
    coverage: list[bytes]  # packed shards
    pin_s: float | None = None
    pending: bool = False
    local_only: bool = False  # as peers ask each other
    wait_s: float = 0.0
    timeout_s: float | None = None


class Get(_Message, frozen=True, tag=11):
    """Answer: GetReply with the values as payload."""

    entries: list[bytes]


class Read(_Message, frozen=True, tag=12):
    """Extents through the socket, for clients without shared memory. Answer: GetReply."""

    slots: list[int]
    generations: list[int]
    extents: list[int]


class Exists(_Message, frozen=True, tag=13):
    """Answer: ExistsReply."""

    entries: list[bytes]


class Remove(_Message, frozen=True, tag=14):
    """String entries go from every node. Between nodes (`fence_s`): > 0 from this one, which takes
    in no copies of them for so long; 0 ends that. Answer: CountReply."""

    entries: list[bytes]
    fence_s: float | None = None


class Clear(_Message, frozen=True, tag=15):
    """All string entries, or all blocks of one namespace (digest), or (both None/False) everything.
    Answer: CountReply."""

    namespace: bytes | None = None
    strings_only: bool = False


class Unpin(_Message, frozen=True, tag=16):
    """`read_bytes`: what was read under this ticket; from shared memory the daemon sees nothing of
    it. Answer: Ok."""

    ticket: bytes
    read_bytes: int = 0


class RenewTicket(_Message, frozen=True, tag=17):
    ticket: bytes
    ttl_s: float


class MapSegment(_Message, frozen=True, tag=18):
    """Answer: SegmentReply with one descriptor. `writable` only for a segment granted to this
    client."""

    segment: int
    writable: bool = False


class OpenNamespace(_Message, frozen=True, tag=19):
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


class AwaitExtent(_Message, frozen=True, tag=20):
    """Answered (Ok) when the watermark passes `extent`, or with Failure when the reservation ends
    or `timeout_s` does."""

    slot: int
    generation: int
    extent: int
    timeout_s: float


class PublishHbm(_Message, frozen=True, tag=21):
    """What an engine's own device cache gained and lost: advisory, ends with the connection.
    Answer: Ok."""

    namespace: int
    stored: bytes  # 16 bytes a block
    removed: bytes
    cleared: bool = False


class ReportCorrupt(_Message, frozen=True, tag=22):
    """A reader found bytes that do not match. The daemon checks for itself and drops the entry if
    so. Answer: Ok."""

    slot: int
    generation: int


class ReleaseSegment(_Message, frozen=True, tag=23):
    """The client has unmapped a granted segment for good. Answer: Ok."""

    segment: int


class GetStats(_Message, frozen=True, tag=24):
    """Answer: StatsReply."""


class AwaitExtents(_Message, frozen=True, tag=25):
    """As AwaitExtent, for one extent of many entries at once: answered (ExtentsReply) when each
    has passed it or has ended; with Failure after `timeout_s`."""

    slots: list[int]
    generations: list[int]
    extent: int
    timeout_s: float


class FetchBlocks(_Message, frozen=True, tag=26):
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


# -- replies ----------------------------------------------------------------------


class Challenge(_Message, frozen=True, tag=64):
    nonce: bytes


class Welcome(_Message, frozen=True, tag=65):
    """With the slot table's descriptor over a unix socket (`shared_memory` true)."""

    version: int
    instance: str
    boot_id: str
    layout_version: int
    shared_memory: bool
    segment_sizes: list[int]
    slot_table_bytes: int
    inline_bytes: int  # puts up to this size go through the socket
    max_entry_bytes: int


class Ok(_Message, frozen=True, tag=66):
    pass


class Failure(_Message, frozen=True, tag=67):
    code: str
    message: str


class PutReply(_Message, frozen=True, tag=68):
    results: list[tuple[int, str]]  # PutStatus, reason


class Reserved(_Message, frozen=True, tag=69):
    """Per entry: ReserveStatus, slot, generation, segment, offset, and whether this client may map
    it writable."""

    results: list[tuple[int, int, int, int, int, bool]]
    reason: str = ""


class LookupReply(_Message, frozen=True, tag=70):
    found: list[tuple[int, int, int, int, int, int] | None]  # Located
    ticket: bytes = b""
    lifetimes: list[float | None] = []  # between nodes: seconds until each ends, if it does


class BlockEntry(NamedTuple):
    slot: int
    generation: int
    segment: int
    offset: int
    shard: int  # index into BlocksReply.shards
    extents: int  # complete layer extents: all of them unless it is still being written or filled
    tier: str  # where its bytes come from


class BlocksReply(_Message, frozen=True, tag=71):
    """Leading blocks that hit: for each, the entries that together cover what was asked (see
    layout.reshard). `checksums` holds, entry after entry, one u64 LE for each layer extent of the
    shard (0 where it is not known yet: AwaitExtents tells it then)."""

    blocks: list[list[BlockEntry]]
    shards: list[bytes]
    checksums: bytes
    ticket: bytes = b""
    transports: list[str] = []  # one a block: how it comes to our DRAM; empty: all lay there


class GetReply(_Message, frozen=True, tag=72):
    sizes: list[int]  # -1: a miss
    checksums: list[int]


class ExistsReply(_Message, frozen=True, tag=73):
    found: bytes  # one 0/1 byte a key


class CountReply(_Message, frozen=True, tag=74):
    count: int


class SegmentReply(_Message, frozen=True, tag=75):
    segment: int
    num_bytes: int
    writable: bool


class NamespaceReply(_Message, frozen=True, tag=76):
    namespace: int


class StatsReply(_Message, frozen=True, tag=77):
    stats: bytes  # JSON, the body of GET /v1/stats


class ExtentsReply(_Message, frozen=True, tag=79):
    """One 0/1 byte an entry: the extent is complete, or the entry ended before it was. `checksums`:
    one u64 LE an entry, the extent's xxh3-64 (0 where it is not complete)."""

    complete: bytes
    checksums: bytes


class RevokeSegment(_Message, frozen=True, tag=78):
    """Unasked (request id 0): the daemon wants a granted segment back; answer with ReleaseSegment
    when convenient."""

    segment: int


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
)
Reply = (
    Challenge
    | Welcome
    | Ok
    | Failure
    | PutReply
    | Reserved
    | LookupReply
    | BlocksReply
    | GetReply
    | ExistsReply
    | CountReply
    | SegmentReply
    | NamespaceReply
    | StatsReply
    | RevokeSegment
    | ExtentsReply
)

_T = TypeVar("_T")
_ENCODER = msgspec.msgpack.Encoder()
_REQUESTS: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_REPLIES: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


class FrameHeader(NamedTuple):
    version: int
    request_id: int
    body_bytes: int
    payload_bytes: int


def encode_frame(message: Request | Reply, request_id: int, payload_bytes: int = 0) -> bytes:
    """Header and body; the payload, if any, follows on the socket."""
    body = _ENCODER.encode(message)
    return HEADER.pack(MAGIC, WIRE_VERSION, 0, request_id, len(body), payload_bytes) + body


def prove(token: bytes, nonce: bytes, client: str) -> bytes:
    """`Hello.proof`: shows the token without sending it."""
    return hmac.new(token, nonce + client.encode(), hashlib.sha256).digest()


def decode_header(data: bytes | memoryview) -> FrameHeader:
    """Raises InvalidRequest on anything but a frame header within bounds."""
    magic, version, _flags, request_id, body_bytes, payload_bytes = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise InvalidRequest(
            f"not a Moontide frame: it starts with {bytes(magic).hex()}, not {MAGIC.hex()}"
        )
    if body_bytes > MAX_BODY_BYTES:
        raise InvalidRequest(f"frame body of {body_bytes} bytes exceeds {MAX_BODY_BYTES}")
    if payload_bytes > MAX_PAYLOAD_BYTES:
        raise InvalidRequest(f"frame payload of {payload_bytes} bytes exceeds {MAX_PAYLOAD_BYTES}")
    return FrameHeader(version, request_id, body_bytes, payload_bytes)


def decode_request(body: bytes | memoryview) -> Request:
    return _decode(_REQUESTS, body)


def decode_reply(body: bytes | memoryview) -> Reply:
    return _decode(_REPLIES, body)


def _decode(decoder: msgspec.msgpack.Decoder[_T], body: bytes | memoryview) -> _T:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"malformed message: {error}") from error

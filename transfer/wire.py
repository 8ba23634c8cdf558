"""Frames between a transfer client and a transfer server.

frame  = header ‖ payload
header = magic "MX" | version u8 | kind u8 | segment u32 | request id u64 | offset u64 |
         length u64   (32 bytes, LE)

A connection is: Challenge (the server speaks first) → Hello → Welcome | Refused, each a msgpack
body of `length` bytes; then requests, pipelined, answered in order:

    READ  segment, offset, length            → DATA ‖ length bytes   | FAILED ‖ reason
    WRITE segment, offset, length ‖ payload  → DONE                  | FAILED ‖ reason

Since version 2 small ones share a frame, a *bundle* of `offset` requests, whose ids count up from
`request id`:

    WRITES ‖ for each: segment u32, length u32, offset u64 ‖ all payloads
    DATAS  ‖ the bytes of so many READs
    DONES

DATAS and DONES stand for a DATA, or DONE, of each; of requests that were sent in any frames. Where
one of them fails the others are answered without it.

`version` is that of the frame's layout, which is 1 for every kind so far. The handshake agrees on
the newest version both ends speak; a kind that came with a newer one is not sent then.

Both ends prove that they hold the cluster token, over both nonces (HMAC-SHA256), before a request
is read. Lengths are checked against their bounds before anything is allocated.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import struct
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import msgspec

from .errors import Malformed, VersionMismatch

WIRE_VERSION = 2
OLDEST_VERSION = 1
BUNDLES_VERSION = 2
MAGIC = b"MX"
HEADER = struct.Struct("<2sBBIQQQ")
HEADER_BYTES = HEADER.size
FRAME_VERSION = 1
NONCE_BYTES = 32
MAX_HANDSHAKE_BYTES = 2048
MAX_REASON_BYTES = 512
MAX_PIECE_BYTES = 16 << 20
"""Of one READ or WRITE; larger slices travel as several pieces."""
MAX_OFFSET = 1 << 62
MAX_REQUEST_ID = (1 << 64) - 1
MAX_BUNDLE_SLICES = 64
MAX_BUNDLE_BYTES = 1 << 20
"""Of the slices of one bundle."""
_PLACE = struct.Struct("<IIQ")


class Kind(enum.IntEnum):
    CHALLENGE = 1
    HELLO = 2
    WELCOME = 3
    REFUSED = 4
    READ = 16
    WRITE = 17
    DATA = 18
    DONE = 19
    FAILED = 20
    WRITES = 21
    DATAS = 22
    DONES = 23


_LENGTHS = {
    Kind.CHALLENGE: (1, MAX_HANDSHAKE_BYTES),
    Kind.HELLO: (1, MAX_HANDSHAKE_BYTES),
    Kind.WELCOME: (1, MAX_HANDSHAKE_BYTES),
    Kind.REFUSED: (1, MAX_HANDSHAKE_BYTES),
    Kind.READ: (1, MAX_PIECE_BYTES),
    Kind.WRITE: (1, MAX_PIECE_BYTES),
    Kind.DATA: (1, MAX_PIECE_BYTES),
    Kind.DONE: (0, 0),
    Kind.FAILED: (0, MAX_REASON_BYTES),
    Kind.WRITES: (2 * (_PLACE.size + 1), MAX_BUNDLE_SLICES * _PLACE.size + MAX_BUNDLE_BYTES),
    Kind.DATAS: (2, MAX_BUNDLE_BYTES),
    Kind.DONES: (0, 0),
}
_BUNDLES = (Kind.WRITES, Kind.DATAS, Kind.DONES)
_KINDS = {int(kind): kind for kind in Kind}


class Header(NamedTuple):
    kind: Kind
    segment: int = 0
    request_id: int = 0
    offset: int = 0
    length: int = 0

    @property
    def request_ids(self) -> range:
        """Of the requests that this frame makes or answers."""
        return range(self.request_id, self.request_id + self.num_slices)

    @property
    def num_slices(self) -> int:
        return self.offset if self.kind in _BUNDLES else 1


class Body(msgspec.Struct, frozen=True, array_like=True, gc=False):
    pass


class Challenge(Body, frozen=True):
    nonce: bytes


class Hello(Body, frozen=True):
    oldest_version: int
    newest_version: int
    client: str  # Instance of the client
    server: str  # Instance that the client means to talk to
    nonce: bytes
    proof: bytes


class Welcome(Body, frozen=True):
    version: int
    proof: bytes


class Refusal(Body, frozen=True):
    code: str  # of errors.py
    message: str


_KIND_OF: dict[type[Body], Kind] = {
    Challenge: Kind.CHALLENGE,
    Hello: Kind.HELLO,
    Welcome: Kind.WELCOME,
    Refusal: Kind.REFUSED,
}
BodyT = TypeVar("BodyT", bound=Body)


def encode_header(header: Header) -> bytes:
    kind, segment, request_id, offset, length = header
    return HEADER.pack(MAGIC, FRAME_VERSION, kind, segment, request_id, offset, length)


def decode_header(data: bytes | bytearray | memoryview) -> Header:
    """Raises Malformed; every length is within the bound of its kind then."""
    try:
        magic, version, kind_code, segment, request_id, offset, length = HEADER.unpack(data)
    except struct.error as error:
        raise Malformed(f"a header of {len(data)} bytes; it has {HEADER_BYTES}") from error
    if magic != MAGIC or version != FRAME_VERSION:
        raise Malformed(f"magic {magic!r}, version {version}: no frame of the transfer wire")
    kind = _KINDS.get(kind_code)
    if kind is None:
        raise Malformed(f"kind {kind_code} is unknown to wire version {WIRE_VERSION}")
    least, most = _LENGTHS[kind]
    if not least <= length <= most or offset > MAX_OFFSET:
        raise Malformed(
            f"{kind.name} of {length} bytes at offset {offset}; it has {least}..{most} bytes, "
            f"offsets up to {MAX_OFFSET}"
        )
    if kind in _BUNDLES and not (
        2 <= offset <= MAX_BUNDLE_SLICES and request_id + offset - 1 <= MAX_REQUEST_ID
    ):
        raise Malformed(
            f"{kind.name} of {offset} slices from {request_id} on; a bundle has "
            f"2..{MAX_BUNDLE_SLICES}, with ids up to {MAX_REQUEST_ID}"
        )
    return Header(kind, segment, request_id, offset, length)


def bundle_length(requests: Sequence[Header]) -> int:
    """How many of them, from the first on, can share a frame: a bundle, or a frame of its own."""
    kind, _, first_id, _, _ = requests[0]
    num_bytes = 0
    for count, request in enumerate(requests[:MAX_BUNDLE_SLICES]):
        num_bytes += request.length
        is_next = request.kind is kind and request.request_id == first_id + count
        if count and not (is_next and num_bytes <= MAX_BUNDLE_BYTES):
            return count
    return min(len(requests), MAX_BUNDLE_SLICES)


def success(requests: Sequence[Header]) -> Header:
    """The answer that these, which can share a frame, are done."""
    kind, _, request_id, _, num_bytes = requests[0]
    is_read = kind is Kind.READ
    if len(requests) == 1:
        return (
            Header(Kind.DATA, 0, request_id, 0, num_bytes)
            if is_read
            else Header(Kind.DONE, 0, request_id)
        )
    if not is_read:
        return Header(Kind.DONES, 0, request_id, len(requests))
    return Header(Kind.DATAS, 0, request_id, len(requests), sum([each.length for each in requests]))


def encode_writes(writes: Sequence[Header]) -> bytes:
    """All of a WRITES frame but its payloads."""
    places = [_PLACE.pack(write.segment, write.length, write.offset) for write in writes]
    table = b"".join(places)
    num_bytes = len(table) + sum([write.length for write in writes])
    head = Header(Kind.WRITES, 0, writes[0].request_id, len(writes), num_bytes)
    return encode_header(head) + table


def table_bytes(writes: Header) -> int:
    """Of a WRITES frame."""
    return writes.num_slices * _PLACE.size


def decode_writes(header: Header, table: bytes | bytearray | memoryview) -> list[Header]:
    """What a WRITES frame asks for. Raises Malformed; the payloads are as long as was said and
    every length is within its bound then."""
    writes = [
        Header(Kind.WRITE, segment, request_id, offset, length)
        for request_id, (segment, length, offset) in zip(
            header.request_ids, _PLACE.iter_unpack(table), strict=True
        )
    ]
    num_bytes = sum(write.length for write in writes)
    if num_bytes != header.length - len(table) or num_bytes > MAX_BUNDLE_BYTES:
        raise Malformed(
            f"WRITES of {num_bytes} bytes in a frame of {header.length}; at most {MAX_BUNDLE_BYTES}"
        )
    for write in writes:
        if not write.length or write.offset > MAX_OFFSET:
            raise Malformed(
                f"WRITES of {write.length} bytes at offset {write.offset}; it has 1 byte at least, "
                f"offsets up to {MAX_OFFSET}"
            )
    return writes


def encode_body(body: Body) -> bytes:
    """The whole frame of one message of the handshake."""
    encoded = msgspec.msgpack.encode(body)
    return encode_header(Header(_KIND_OF[type(body)], length=len(encoded))) + encoded


def decode_body(kind: Kind, data: bytes, wanted: type[BodyT]) -> BodyT:
    """Raises Malformed."""
    if kind is not _KIND_OF[wanted]:
        raise Malformed(f"{kind.name} where {_KIND_OF[wanted].name} was due")
    try:
        return msgspec.msgpack.decode(data, type=wanted)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise Malformed(f"{kind.name}: {error}") from error


def encode_reason(request_id: int, reason: str) -> bytes:
    """A whole FAILED frame."""
    text = reason.encode("utf-8", "replace")[:MAX_REASON_BYTES]
    return encode_header(Header(Kind.FAILED, request_id=request_id, length=len(text))) + text


def common_version(oldest: int, newest: int) -> int:
    """The newest version both ends speak. Raises VersionMismatch."""
    version = min(newest, WIRE_VERSION)
    if version < max(oldest, OLDEST_VERSION):
        raise VersionMismatch(
            f"the client speaks transfer wire {oldest}..{newest}, this server "
            f"{OLDEST_VERSION}..{WIRE_VERSION}; upgrade the older one"
        )
    return version


def client_proof(token: bytes, challenge: Challenge, hello: Hello) -> bytes:
    """What `hello.proof` must be; covers every other field."""
    said = f"{hello.oldest_version} {hello.newest_version} {hello.client} {hello.server}"
    return _prove(token, b"client", challenge.nonce, hello.nonce, said)


def server_proof(token: bytes, challenge: Challenge, hello: Hello, version: int) -> bytes:
    """What a Welcome's `proof` must be: the server is `hello.server` and holds the token."""
    said = f"{version} {hello.server}"
    return _prove(token, b"server", hello.nonce, challenge.nonce, said)


def _prove(token: bytes, role: bytes, first: bytes, second: bytes, said: str) -> bytes:
    fields = (b"moontide transfer", role, first, second, said.encode())
    message = b"".join(len(field).to_bytes(4, "little") + field for field in fields)
    return hmac.new(token, message, hashlib.sha256).digest()

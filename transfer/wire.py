"""Frames between a transfer client and a transfer server.

frame  = header ‖ payload
header = magic "MX" | version u8 | kind u8 | segment u32 | request id u64 | offset u64 |
         length u64   (32 bytes, LE)

A connection is: Challenge (the server speaks first) → Hello → Welcome | Refused, each a msgpack
body of `length` bytes; then requests, pipelined, answered in order:

    READ  segment, offset, length            → DATA ‖ length bytes   | FAILED ‖ reason
    WRITE segment, offset, length ‖ payload  → DONE                  | FAILED ‖ reason

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
from typing import NamedTuple, TypeVar

import msgspec

from .errors import Malformed, VersionMismatch

WIRE_VERSION = 1
OLDEST_VERSION = 1
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
}
_KINDS = {int(kind): kind for kind in Kind}


class Header(NamedTuple):
    kind: Kind
    segment: int = 0
    request_id: int = 0
    offset: int = 0
    length: int = 0


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
    return Header(kind, segment, request_id, offset, length)


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

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
from typing import NamedTuple, TypeVar

import msgspec

from ..errors import InvalidRequest
from .message import Message
from .replies import (
    BlockEntry,
    BlocksReply,
    Challenge,
    CountReply,
    ExistsReply,
    ExtentsReply,
    Failure,
    GetReply,
    LocateReply,
    LookupReply,
    NamespaceReply,
    Ok,
    PutReply,
    Reply,
    Reserved,
    RevokeSegment,
    RunReply,
    SegmentReply,
    StatsReply,
    Welcome,
)
from .requests import (
    Abort,
    Advance,
    AwaitExtent,
    AwaitExtents,
    Clear,
    Commit,
    CommitRun,
    Exists,
    FetchBlocks,
    Get,
    GetStats,
    Hello,
    Locate,
    Lookup,
    LookupBlocks,
    MapSegment,
    NoteUse,
    OpenNamespace,
    Prefetch,
    PrefetchBlocks,
    PublishHbm,
    Put,
    Read,
    ReadFloors,
    ReleaseSegment,
    Remove,
    RenewTicket,
    ReportCorrupt,
    Request,
    Reserve,
    ReserveBlocks,
    ReserveRun,
    Unpin,
    Write,
)

__all__ = [
    "Abort",
    "Advance",
    "AwaitExtent",
    "AwaitExtents",
    "BlockEntry",
    "BlocksReply",
    "Challenge",
    "Clear",
    "Commit",
    "CommitRun",
    "CountReply",
    "Exists",
    "ExistsReply",
    "ExtentsReply",
    "Failure",
    "FetchBlocks",
    "FrameHeader",
    "Get",
    "GetReply",
    "GetStats",
    "HEADER",
    "Hello",
    "Locate",
    "LocateReply",
    "Lookup",
    "LookupBlocks",
    "LookupReply",
    "MAGIC",
    "MAX_BODY_BYTES",
    "MAX_KEYS",
    "MAX_PAYLOAD_BYTES",
    "MAX_REPLICAS",
    "MapSegment",
    "Message",
    "NamespaceReply",
    "NoteUse",
    "OLDEST_VERSION",
    "Ok",
    "OpenNamespace",
    "Prefetch",
    "PrefetchBlocks",
    "PublishHbm",
    "Put",
    "PutReply",
    "Read",
    "ReadFloors",
    "ReleaseSegment",
    "Remove",
    "RenewTicket",
    "Reply",
    "ReportCorrupt",
    "Request",
    "Reserve",
    "ReserveBlocks",
    "ReserveRun",
    "Reserved",
    "RevokeSegment",
    "RunReply",
    "SMALL_BODY_BYTES",
    "SegmentReply",
    "StatsReply",
    "Unpin",
    "WIRE_VERSION",
    "Welcome",
    "Write",
    "decode_header",
    "decode_reply",
    "decode_request",
    "encode_frame",
    "prove",
    "whole_request",
]

WIRE_VERSION = 2
"""2: runs, NoteUse, Locate, and header slots that tell WITHDRAWN from COMMITTED (ADR 0015)."""
OLDEST_VERSION = 1
MAGIC = b"MT"
HEADER = struct.Struct("<2sBBIIQ")
MAX_BODY_BYTES = 8 << 20
SMALL_BODY_BYTES = 4096
"""Requests up to this size are not worth counting while they are served."""
MAX_PAYLOAD_BYTES = 1 << 32
MAX_KEYS = 16384
"""Most keys one message may name."""
MAX_REPLICAS = 16
"""Most complete copies that a put may ask for."""

_T = TypeVar("_T")
_ENCODER = msgspec.msgpack.Encoder()
_REQUESTS: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_REPLIES: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


class FrameHeader(NamedTuple):
    version: int
    request_id: int
    body_bytes: int
    payload_bytes: int


def encode_frame(
    message: Request | Reply,
    request_id: int,
    payload_bytes: int = 0,
    *,
    version: int = WIRE_VERSION,
) -> bytes:
    """Header and body; the payload, if any, follows on the socket. `version` is what the
    connection agreed on."""
    body = _ENCODER.encode(message)
    return HEADER.pack(MAGIC, version, 0, request_id, len(body), payload_bytes) + body


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


def whole_request(data: memoryview) -> tuple[FrameHeader, Request] | None:
    """The request at the front of `data` if it lies there whole, small and without payload. None:
    more has to come, or `decode_header` has to look at it. Raises InvalidRequest on a malformed
    body."""
    if len(data) < HEADER.size:
        return None
    magic, version, _flags, request_id, body_bytes, payload_bytes = HEADER.unpack_from(data)
    if (
        magic != MAGIC
        or not OLDEST_VERSION <= version <= WIRE_VERSION
        or body_bytes > SMALL_BODY_BYTES
        or HEADER.size + body_bytes > len(data)
        or payload_bytes
    ):
        return None
    message = _decode(_REQUESTS, data[HEADER.size : HEADER.size + body_bytes])
    return FrameHeader(version, request_id, body_bytes, payload_bytes), message


def decode_request(body: bytes | memoryview) -> Request:
    return _decode(_REQUESTS, body)


def decode_reply(body: bytes | memoryview) -> Reply:
    return _decode(_REPLIES, body)


def _decode(decoder: msgspec.msgpack.Decoder[_T], body: bytes | memoryview) -> _T:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"malformed message: {error}") from error

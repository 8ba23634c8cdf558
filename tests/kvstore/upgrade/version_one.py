"""Version 1 of the wire, frozen: its messages and frames by themselves, a client that knows no
other, and a store that seems to know no other. Nothing here is shared with the code under test."""

from __future__ import annotations

import array
import os
import secrets
import socket
import struct
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ...relaying import SocketRelay

HEADER = struct.Struct("<2sBBIIQ")  # magic, version, flags, request id, body, payload
TIMEOUT_SECONDS = 10.0
MAX_DESCRIPTORS = 4


class Message(msgspec.Struct, frozen=True, array_like=True):
    """Fields that came later follow these, and are not read."""


class Hello(Message, frozen=True, tag=1):
    oldest_version: int
    newest_version: int
    client: str
    boot_id: str
    quiesced: bool
    proof: bytes


class Put(Message, frozen=True, tag=2):
    entries: list[bytes]
    sizes: list[int]
    checksums: list[int]
    if_exists: str
    ttl_s: float | None
    soft_pin: bool
    replicas: int


class Reserve(Message, frozen=True, tag=3):
    entries: list[bytes]
    sizes: list[int]
    if_exists: str
    ttl_s: float | None
    soft_pin: bool
    replicas: int


class ReserveBlocks(Message, frozen=True, tag=4):
    namespace: int
    keys: bytes
    parent: bytes
    shards: list[bytes]
    ttl_s: float | None
    request_scoped: bool


class Write(Message, frozen=True, tag=5):
    slot: int
    generation: int
    offset: int


class Advance(Message, frozen=True, tag=6):
    slots: list[int]
    generations: list[int]
    extent: int
    checksums: list[int]


class Commit(Message, frozen=True, tag=7):
    slots: list[int]
    generations: list[int]
    checksums: list[int]


class Abort(Message, frozen=True, tag=8):
    slots: list[int]
    generations: list[int]


class Lookup(Message, frozen=True, tag=9):
    entries: list[bytes]
    pin_s: float | None
    local_only: bool


class LookupBlocks(Message, frozen=True, tag=10):
    namespace: int
    keys: bytes
    coverage: list[bytes]
    pin_s: float | None
    pending: bool
    local_only: bool
    wait_s: float
    timeout_s: float | None


class Get(Message, frozen=True, tag=11):
    entries: list[bytes]


class Read(Message, frozen=True, tag=12):
    slots: list[int]
    generations: list[int]
    extents: list[int]


class Exists(Message, frozen=True, tag=13):
    entries: list[bytes]


class Remove(Message, frozen=True, tag=14):
    entries: list[bytes]
    fence_s: float | None


class Clear(Message, frozen=True, tag=15):
    namespace: bytes | None
    strings_only: bool


class Unpin(Message, frozen=True, tag=16):
    ticket: bytes
    read_bytes: int


class RenewTicket(Message, frozen=True, tag=17):
    ticket: bytes
    ttl_s: float


class MapSegment(Message, frozen=True, tag=18):
    segment: int
    writable: bool


class OpenNamespace(Message, frozen=True, tag=19):
    digest: bytes
    weights_id: str
    tokenizer_digest: str
    block_tokens: int
    rope_scaling: str
    adapter_digest: str
    salt: str
    groups: list[tuple[str, int, int, int, str, int | None, int | None]]


class AwaitExtent(Message, frozen=True, tag=20):
    slot: int
    generation: int
    extent: int
    timeout_s: float


class PublishHbm(Message, frozen=True, tag=21):
    namespace: int
    stored: bytes
    removed: bytes
    cleared: bool


class ReportCorrupt(Message, frozen=True, tag=22):
    slot: int
    generation: int


class ReleaseSegment(Message, frozen=True, tag=23):
    segment: int


class GetStats(Message, frozen=True, tag=24):
    pass


class AwaitExtents(Message, frozen=True, tag=25):
    slots: list[int]
    generations: list[int]
    extent: int
    timeout_s: float


class FetchBlocks(Message, frozen=True, tag=26):
    namespace: int
    keys: bytes
    coverage: list[bytes]
    source: str
    pin_s: float
    timeout_s: float
    num_request_scoped: int


class Challenge(Message, frozen=True, tag=64):
    nonce: bytes


class Welcome(Message, frozen=True, tag=65):
    version: int
    instance: str
    boot_id: str
    layout_version: int
    shared_memory: bool
    segment_sizes: list[int]
    slot_table_bytes: int
    inline_bytes: int
    max_entry_bytes: int


class Ok(Message, frozen=True, tag=66):
    pass


class Failure(Message, frozen=True, tag=67):
    code: str
    message: str


class PutReply(Message, frozen=True, tag=68):
    results: list[tuple[int, str]]


class Reserved(Message, frozen=True, tag=69):
    results: list[tuple[int, int, int, int, int, bool]]
    reason: str


class LookupReply(Message, frozen=True, tag=70):
    found: list[tuple[int, int, int, int, int, int] | None]
    ticket: bytes
    lifetimes: list[float | None]


class BlocksReply(Message, frozen=True, tag=71):
    blocks: list[list[tuple[int, int, int, int, int, int, str]]]
    shards: list[bytes]
    checksums: bytes
    ticket: bytes
    transports: list[str]


class GetReply(Message, frozen=True, tag=72):
    sizes: list[int]
    checksums: list[int]


class ExistsReply(Message, frozen=True, tag=73):
    found: bytes


class CountReply(Message, frozen=True, tag=74):
    count: int


class SegmentReply(Message, frozen=True, tag=75):
    segment: int
    num_bytes: int
    writable: bool


class NamespaceReply(Message, frozen=True, tag=76):
    namespace: int


class StatsReply(Message, frozen=True, tag=77):
    stats: bytes


class RevokeSegment(Message, frozen=True, tag=78):
    segment: int


class ExtentsReply(Message, frozen=True, tag=79):
    complete: bytes
    checksums: bytes


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
decode_request = msgspec.msgpack.Decoder(Request).decode
decode_reply = msgspec.msgpack.Decoder(Reply).decode


class Frame(NamedTuple):
    version: int
    request_id: int
    body: bytes
    payload: bytes
    descriptors: list[int]  # the receiver's to close


def encode(message: Message, request_id: int, payload: bytes = b"") -> bytes:
    body = msgspec.msgpack.encode(message)
    return HEADER.pack(b"MT", 1, 0, request_id, len(body), len(payload)) + body + payload


def receive(sock: socket.socket) -> Frame:
    """Raises EOFError."""
    descriptors: list[int] = []

    def read(num_bytes: int) -> bytes:
        data = bytearray()
        while len(data) < num_bytes:
            left = min(num_bytes - len(data), 1 << 20)
            piece, ancillary, _, _ = sock.recvmsg(left, socket.CMSG_SPACE(4 * MAX_DESCRIPTORS))
            for _, _, rights in ancillary:
                descriptors.extend(array.array("i", rights))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)

    magic, version, flags, request_id, body_bytes, payload_bytes = HEADER.unpack(read(HEADER.size))
    assert (magic, flags) == (b"MT", 0)
    return Frame(version, request_id, read(body_bytes), read(payload_bytes), descriptors)


class Client:
    """A greeted client of version 1 on a unix socket. Every answer it gets is one that it can
    read."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(TIMEOUT_SECONDS)
        self.socket.connect(str(path))
        self._last_id = 0
        self.descriptors: list[int] = []
        name = f"v1/{os.getpid()}/{secrets.token_hex(16)}"
        welcome, _ = self.call(Hello(1, 1, name, boot_id, True, b""))
        assert isinstance(welcome, Welcome), welcome
        self.welcome = welcome

    def call(self, message: Message, payload: bytes = b"") -> tuple[Any, bytes]:
        """The answer and its payload; notices on the way are read, too."""
        self._last_id += 1
        self.socket.sendall(encode(message, self._last_id, payload))
        while True:
            frame = receive(self.socket)
            self.descriptors += frame.descriptors
            assert frame.version == 1
            reply = decode_reply(frame.body)
            if frame.request_id == self._last_id:
                return reply, frame.payload
            assert (frame.request_id, type(reply)) == (0, RevokeSegment)

    def close(self) -> None:
        self.socket.close()
        for descriptor in self.descriptors:
            os.close(descriptor)


class Store(SocketRelay):
    """Listens at `path` as a store of version 1 would, in front of a real one: only what that
    version knows gets through, either way. `requests` counts what came; `strangers` tells what came
    that no store of version 1 understands."""

    def __init__(self, path: Path, target: Path) -> None:
        self.requests: Counter[str] = Counter()
        self.strangers: list[str] = []
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()
        super().__init__(listener, lambda: _connect(target))

    def pass_on(self, client: socket.socket, server: socket.socket) -> None:
        while True:
            frame = receive(client)
            try:
                message = decode_request(frame.body)
            except msgspec.DecodeError as error:
                self.strangers.append(f"{error}: {frame.body[:40]!r}")
                return
            if frame.version != 1:
                self.strangers.append(f"{type(message).__name__} in version {frame.version}")
            if isinstance(message, Put) and len(message.checksums) != len(message.entries):
                self.strangers.append(f"{len(message.checksums)} checksums: {message!r:.100}")
            self.requests[type(message).__name__] += 1
            if isinstance(message, Hello):
                message = msgspec.structs.replace(message, newest_version=1)
            server.sendall(encode(message, frame.request_id, frame.payload))

    def pass_back(self, server: socket.socket, client: socket.socket) -> None:
        while True:
            frame = receive(server)
            data = encode(decode_reply(frame.body), frame.request_id, frame.payload)
            socket.send_fds(client, [data[:1]], frame.descriptors)
            for descriptor in frame.descriptors:
                os.close(descriptor)
            client.sendall(data[1:])


def _connect(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(path))
    return connection

"""Frames over a socket, blocking or not: requests as far as it takes them, replies once they are
whole."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, Protocol

from moontide.transfer import close_descriptors, receive_with_descriptors
from moontide.transfer.errors import TransferError

from ... import wire
from ...errors import InvalidRequest, StoreUnavailable
from .reply_wait import ReplyWait

RECEIVE_BYTES = 64 << 10
LEAST_RECEIVED_BYTES = 16 << 10
"""Where a reply brings a payload to a place: more of it than comes with the head goes there
directly."""
MAX_SEND_BUFFERS = 256
"""Of one sendmsg; the kernel takes at most 1024."""
MAX_REQUEST_ID = 0xFFFFFFFF
MAX_FRAME_DESCRIPTORS = 4
"""One a reply; a few may arrive together."""

Buffers = Sequence[memoryview | bytes]


@dataclass(frozen=True, slots=True)
class Stream:
    """A payload that is made while it is sent, part by part, and anew where it is sent again."""

    num_bytes: int
    begin: Callable[[], Iterable[Buffers]]


class ConnectionLost(StoreUnavailable):
    """This connection has ended; inside the client only. `sent` is False when surely nothing of the
    request reached the daemon."""

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class OwnerLost(StoreUnavailable):
    """The connection that owned the space had ended before anything was done with it: take new
    space."""


_HEADER_BYTES = wire.HEADER.size
_NO_PAYLOAD = memoryview(b"")
_unpack_header = wire.HEADER.unpack_from


class Frame(NamedTuple):
    request_id: int
    message: wire.Reply
    payload: memoryview  # empty when a place was found for it


class Sink(Protocol):
    """Where a payload goes, from the front."""

    remaining: int

    def room(self) -> memoryview:
        """Where the next bytes go; not empty while any remain."""

    def filled(self, num_bytes: int) -> None:
        """So many were received there."""


Place = Callable[[wire.Reply, int], Sink | None]
"""Given a reply and the size of its payload, which it must take all of; None: into memory of its
own. Not asked when the reply was whole at once."""


class FrameWriter:
    """Requests into one socket: `add` queues one, `send` gives the socket what it takes. They are
    written in `version`: the oldest, until a greeting has agreed on another."""

    def __init__(self, sock: socket.socket) -> None:
        self.version = wire.OLDEST_VERSION
        self._sock = sock
        self._buffers: deque[memoryview] = deque()
        self._last_request = 0

    def __bool__(self) -> bool:
        """True while something is left to send."""
        return bool(self._buffers)

    def frame(self, message: wire.Request) -> tuple[int, bytes]:
        """A request without payload, not queued: for who sends it himself, and its id."""
        self._last_request = request_id = self._last_request % MAX_REQUEST_ID + 1
        return request_id, wire.encode_frame(message, request_id, version=self.version)

    def queue(self, part: bytes) -> None:
        """What is left of a frame."""
        self._buffers.append(memoryview(part))

    def add(self, message: wire.Request, payload: Buffers = ()) -> int:
        """The request's id. The payload must stay unchanged until it is sent."""
        if not payload:
            request_id, frame = self.frame(message)
            self.queue(frame)
            return request_id
        request_id = self.begin(message, sum(map(len, payload)))
        self.extend(payload)
        return request_id

    def begin(self, message: wire.Request, payload_bytes: int) -> int:
        """As `add`, with so much payload that is queued later."""
        self._last_request = request_id = self._last_request % MAX_REQUEST_ID + 1
        self.queue(wire.encode_frame(message, request_id, payload_bytes, version=self.version))
        return request_id

    def extend(self, payload: Buffers) -> None:
        """What is next of a payload."""
        self._buffers.extend(memoryview(part) for part in payload if len(part))

    def tell(self, message: wire.Request) -> None:
        """A request that is never answered."""
        self.queue(wire.encode_frame(message, 0, version=self.version))

    def send(self, flags: int = 0) -> int:
        """One system call; how many bytes the socket took. Raises what the socket raises."""
        buffers = self._buffers
        if len(buffers) == 1:
            taken = self._sock.send(buffers[0], flags)
            if taken == len(buffers[0]):
                buffers.clear()
                return taken
        else:
            taken = self._sock.sendmsg(list(islice(buffers, MAX_SEND_BUFFERS)), (), flags)
        left = taken
        while buffers and left >= len(buffers[0]):
            left -= len(buffers.popleft())
        if left:
            buffers[0] = buffers[0][left:]
        return taken


class FrameReader:
    """Reads one socket. `receive` takes what one call gives, `next` hands out a complete frame.
    Large payloads are received straight to where they go. While `takes_descriptors` is False
    none may be on their way; reading is then cheaper."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.wait = ReplyWait(sock)
        self.takes_descriptors = sock.family == socket.AF_UNIX
        self._data = bytearray()
        self._head: tuple[int, wire.Reply] | None = None  # of the frame whose payload is under way
        self._payload = _NO_PAYLOAD  # its own memory, if it goes there
        self._sink: Sink = _OwnMemory(_NO_PAYLOAD)
        self._expected: tuple[int, Place] | None = None
        self._descriptors: deque[int] = deque()

    def expect(self, request_id: int, place: Place) -> None:
        """The payload of that reply goes where `place` says, until `expect_none`."""
        self._expected = request_id, place

    def expect_none(self) -> None:
        self._expected = None

    def receive(self) -> None:
        """One read. Raises ConnectionLost at the end of the stream, and what the socket raises when
        it would block or its timeout passes."""
        try:
            if self._head is not None and self._sink.remaining:
                num_bytes = self._sock.recv_into(self._sink.room())
                self._sink.filled(num_bytes)
            else:
                num_bytes = self._receive_head()
        except (BlockingIOError, TimeoutError, InterruptedError):
            raise
        except (OSError, TransferError) as error:
            raise ConnectionLost(f"connection to the store failed: {error}") from error
        if not num_bytes:
            raise ConnectionLost("the store closed the connection")

    @property
    def is_between_frames(self) -> bool:
        """True while nothing of a frame is here."""
        return self._head is None and not self._data

    def receive_reply(self, request_id: int) -> tuple[wire.Reply, memoryview] | None:
        """The quick way, to be taken between frames while no descriptors may come: one read, which
        in the common course gives one whole reply to that request, and its payload, for which no
        place is looked for. None: it gave something else, kept for `next`. Raises like `receive`
        and `next`."""
        try:
            data = self.wait.receive(LEAST_RECEIVED_BYTES if self._expected else RECEIVE_BYTES)
        except (BlockingIOError, TimeoutError, InterruptedError):
            raise
        except OSError as error:
            raise ConnectionLost(f"connection to the store failed: {error}") from error
        if not data:
            raise ConnectionLost("the store closed the connection")
        if len(data) >= _HEADER_BYTES:
            magic, version, _, answered, body_bytes, payload_bytes = _unpack_header(data)
            if (
                answered == request_id
                and len(data) == _HEADER_BYTES + body_bytes + payload_bytes
                and magic == wire.MAGIC
                and wire.OLDEST_VERSION <= version <= wire.WIRE_VERSION
            ):
                try:
                    if not payload_bytes:
                        return wire.decode_reply(memoryview(data)[_HEADER_BYTES:]), _NO_PAYLOAD
                    view, end = memoryview(data), _HEADER_BYTES + body_bytes
                    return wire.decode_reply(view[_HEADER_BYTES:end]), view[end:]
                except InvalidRequest as error:
                    raise _malformed(error) from error
        self._data += data
        return None

    def _receive_head(self) -> int:
        if not self.takes_descriptors:
            data = self._sock.recv(RECEIVE_BYTES)
        else:
            data, descriptors = receive_with_descriptors(
                self._sock, RECEIVE_BYTES, MAX_FRAME_DESCRIPTORS
            )
            self._descriptors.extend(descriptors)
        self._data += data
        return len(data)

    def next(self) -> Frame | None:
        """None: more must be received first. Raises ConnectionLost on malformed bytes."""
        try:
            if self._head is None and not self._start_frame():
                return None
        except InvalidRequest as error:
            raise _malformed(error) from error
        assert self._head is not None
        self._take_buffered()
        if self._sink.remaining:
            return None
        frame = Frame(*self._head, self._payload)
        self._head, self._payload, self._sink = None, _NO_PAYLOAD, _OwnMemory(_NO_PAYLOAD)
        return frame

    def take_descriptor(self) -> int:
        """The next descriptor that arrived; the caller's from now on. Raises ConnectionLost when
        there is none."""
        if not self._descriptors:
            raise ConnectionLost("the store announced a descriptor that did not arrive")
        return self._descriptors.popleft()

    def close(self) -> None:
        close_descriptors(self._descriptors)
        self._descriptors.clear()

    def _start_frame(self) -> bool:
        size = wire.HEADER.size
        if len(self._data) < size:
            return False
        header = wire.decode_header(bytes(self._data[:size]))
        if not wire.OLDEST_VERSION <= header.version <= wire.WIRE_VERSION:
            raise InvalidRequest(f"frame version {header.version}, not {wire.WIRE_VERSION}")
        if len(self._data) < size + header.body_bytes:
            return False
        message = wire.decode_reply(bytes(self._data[size : size + header.body_bytes]))
        del self._data[: size + header.body_bytes]
        self._head = (header.request_id, message)
        sink = None
        if self._expected is not None and self._expected[0] == header.request_id:
            sink = self._expected[1](message, header.payload_bytes)
        if sink is None:
            self._payload = memoryview(bytearray(header.payload_bytes))
            sink = _OwnMemory(self._payload)
        self._sink = sink
        return True

    def _take_buffered(self) -> None:
        while self._data and self._sink.remaining:
            room = self._sink.room()
            count = min(len(room), len(self._data))
            room[:count] = self._data[:count]
            del self._data[:count]
            self._sink.filled(count)


class _OwnMemory:
    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self.remaining = len(memory)

    def room(self) -> memoryview:
        return self._memory[-self.remaining :]

    def filled(self, num_bytes: int) -> None:
        self.remaining -= num_bytes


def _malformed(error: InvalidRequest) -> ConnectionLost:
    return ConnectionLost(f"the store sent malformed bytes: {error}")

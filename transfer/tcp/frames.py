"""Frames on a patient socket (patience.py), their payload straight from and to where it belongs."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from .. import wire
from ..errors import Unavailable
from ..wire import HEADER_BYTES, Header

_SCRATCH_BYTES = 256 << 10
_LARGE_BYTES = 64 << 10
"""So much of a payload is received in one call that waits for all of it."""
_MAX_BUFFERS = 128
"""Of one sendmsg."""
_NOTHING = memoryview(b"")


class FrameReader:
    """`place(header)` says where a payload goes (exactly its length), or None to throw it away;
    `complete(header)` follows when all of it is there. The next header is received with the end of
    a small payload in one call."""

    def __init__(
        self, place: Callable[[Header], memoryview | None], complete: Callable[[Header], None]
    ) -> None:
        self._place = place
        self._complete = complete
        self._head = memoryview(bytearray(HEADER_BYTES))
        self._have = 0  # bytes of the next header
        self._current: Header | None = None
        self._rest = _NOTHING  # of the current payload's place
        self._skip = 0  # bytes of the current payload to throw away
        self._scratch = _NOTHING

    @property
    def current(self) -> Header | None:
        """The frame whose payload is under way."""
        return self._current

    def divert(self) -> None:
        """What is missing of the current payload is thrown away: its place is let go."""
        self._skip += self._rest.nbytes
        self._rest = _NOTHING

    def step(self, sock: socket.socket, flags: int) -> int:
        """One receive, which waits for a payload, and with these flags for a header; bytes that
        came. Raises BlockingIOError, OSError, Unavailable (closed), Malformed."""
        if self._skip:
            received = sock.recv_into(self._scratch_of(self._skip))
            self._skip -= received
        elif self._rest.nbytes >= _LARGE_BYTES:
            received = sock.recv_into(self._rest, 0, socket.MSG_WAITALL)
            self._rest = self._rest[received:] if received < self._rest.nbytes else _NOTHING
        elif self._rest.nbytes:
            received = sock.recvmsg_into([self._rest, self._head])[0]
            placed = min(received, self._rest.nbytes)
            self._rest = self._rest[placed:] if placed < self._rest.nbytes else _NOTHING
            self._have = received - placed
        else:
            received = sock.recv_into(self._head[self._have :], 0, flags)
            self._have += received
        if not received:
            raise Unavailable("the peer closed the connection")
        self._advance()
        return received

    def _advance(self) -> None:
        """Frames that are complete, and the next one's place."""
        self._end_frame()
        if self._have < HEADER_BYTES:
            return
        self._have = 0
        header = wire.decode_header(self._head)
        self._current = header
        target = self._place(header)
        if target is None:
            self._skip = _payload_bytes(header)
        else:
            self._rest = target
        self._end_frame()

    def _end_frame(self) -> None:
        if self._current is not None and not self._skip and not self._rest.nbytes:
            ended, self._current = self._current, None
            self._complete(ended)

    def _scratch_of(self, num_bytes: int) -> memoryview:
        if not self._scratch.nbytes:
            self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        return self._scratch[: min(num_bytes, _SCRATCH_BYTES)]


@dataclass(slots=True, eq=False)
class _Outgoing:
    request_id: int
    buffers: deque[memoryview]
    started: bool = False


class FrameWriter:
    """Requests on their way out, in order. A payload is touched until all of it was taken."""

    def __init__(self) -> None:
        self._queue: deque[_Outgoing] = deque()

    def __bool__(self) -> bool:
        return bool(self._queue)

    def add(self, header: Header, payload: memoryview | None) -> None:
        head = memoryview(wire.encode_header(header))
        buffers = deque((head,) if payload is None else (head, payload))
        self._queue.append(_Outgoing(header.request_id, buffers))

    def flush(self, sock: socket.socket, flags: int) -> int:
        """Sends what the socket takes, with these flags of sendmsg; how many bytes that was.
        Raises OSError."""
        total = 0
        while self._queue:
            buffers: list[memoryview] = []
            for outgoing in self._queue:
                buffers += outgoing.buffers
                if len(buffers) >= _MAX_BUFFERS:
                    break
            try:
                sent = sock.sendmsg(buffers, [], flags)
            except BlockingIOError:
                break
            total += sent
            self._drop(sent)
            if sent < sum([buffer.nbytes for buffer in buffers]):
                break
        return total

    def waiting(self) -> dict[int, bool]:
        """Ids of requests not wholly sent; whether some of it was."""
        return {outgoing.request_id: outgoing.started for outgoing in self._queue}

    def withdraw(self, request_id: int) -> None:
        """Of a request of which nothing was sent."""
        self._queue = deque(item for item in self._queue if item.request_id != request_id)

    def _drop(self, num_bytes: int) -> None:
        while num_bytes:
            outgoing = self._queue[0]
            outgoing.started = True
            first = outgoing.buffers[0]
            if num_bytes < first.nbytes:
                outgoing.buffers[0] = first[num_bytes:]
                return
            num_bytes -= first.nbytes
            outgoing.buffers.popleft()
            if not outgoing.buffers:
                self._queue.popleft()


def _payload_bytes(header: Header) -> int:
    """READ names a length that does not follow; every other kind's does."""
    return 0 if header.kind is wire.Kind.READ else header.length

"""Receives frames whose payload goes straight where it belongs."""

from __future__ import annotations

import socket
from collections.abc import Callable

from .. import wire
from ..errors import Unavailable
from ..wire import HEADER_BYTES, Header

_SCRATCH_BYTES = 256 << 10
_NOTHING = memoryview(b"")


class FrameReader:
    """`place(header)` says where a payload goes (exactly its length), or None to throw it away;
    `complete(header)` follows when all of it is there. The next header is received with the end of
    a payload in one call."""

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

    def step(self, sock: socket.socket) -> int:
        """One receive on a non-blocking socket; bytes that came. Raises BlockingIOError, OSError,
        Unavailable (closed), Malformed."""
        if self._skip:
            received = sock.recv_into(self._scratch_of(self._skip))
            self._skip -= received
        elif self._rest.nbytes:
            received = sock.recvmsg_into([self._rest, self._head])[0]
            placed = min(received, self._rest.nbytes)
            self._rest = self._rest[placed:] if placed < self._rest.nbytes else _NOTHING
            self._have = received - placed
        else:
            received = sock.recv_into(self._head[self._have :])
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


def _payload_bytes(header: Header) -> int:
    """READ names a length that does not follow; every other kind's does."""
    return 0 if header.kind is wire.Kind.READ else header.length

"""Bytes between a connection's socket and its session: the received ones not yet used, and where a
payload goes.

Neither allocates by what a length field claims: a receive buffer grows only as bytes arrive, and a
payload is received straight into the pool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from ..errors import StoreError
from ..wire import HEADER, MAX_BODY_BYTES
from .budget import Budget

INITIAL_BYTES = 32 << 10
LARGEST_BYTES = HEADER.size + MAX_BODY_BYTES
_DRAIN = memoryview(bytearray(64 << 10))
"""Refused payload is received here and never read."""


class ReceiveBuffer:
    """Received bytes of one connection, used from the front. Grows by doubling while a frame is
    incomplete, up to the largest frame head, and shrinks once it is empty. What it takes beyond
    INITIAL_BYTES comes out of `memory`."""

    def __init__(self, memory: Budget) -> None:
        self._memory = memory
        self._view = memoryview(bytearray(INITIAL_BYTES))
        self._start = 0
        self._end = 0

    def __len__(self) -> int:
        return self._end - self._start

    def room(self) -> memoryview:
        """Where the next bytes may be received; never empty while a frame is incomplete. Raises
        Busy when it would have to grow and may not."""
        if self._end == len(self._view):
            self._make_room()
        return self._view[self._end :]

    def filled(self, num_bytes: int) -> None:
        """`num_bytes` were received into `room()`."""
        self._end += num_bytes

    def peek(self, num_bytes: int, skipped: int = 0) -> memoryview:
        """The next bytes behind those `skipped`, at most `num_bytes`; valid until the next call of
        `room`."""
        start = self._start + skipped
        return self._view[start : min(start + num_bytes, self._end)]

    def consume(self, num_bytes: int) -> None:
        self._start += num_bytes
        if self._start == self._end:
            self.drop()

    def drop(self) -> None:
        """Forgets what is left, and shrinks."""
        self._start = self._end = 0
        if len(self._view) > INITIAL_BYTES:
            self._memory.give_back(len(self._view) - INITIAL_BYTES)
            self._view = memoryview(bytearray(INITIAL_BYTES))

    def _make_room(self) -> None:
        used = len(self)
        if self._start == 0:
            size = min(2 * len(self._view), LARGEST_BYTES)
            self._memory.take(size - len(self._view))
            grown = memoryview(bytearray(size))
            grown[:used] = self._view
            self._view = grown
        else:
            self._view[:used] = self._view[self._start : self._end]
        self._start, self._end = 0, used


class Piece(NamedTuple):
    """Payload bytes that belong to one reservation, or to none (`slot` -1)."""

    slot: int
    generation: int
    offset: int  # within it
    num_bytes: int


ReservedBytes = Callable[[int, int], memoryview]
"""The bytes of a reservation (slot, generation). Raises StoreError when it is not current."""


class PayloadSink:
    """Where the payload of one frame goes: piece after piece, straight into what is reserved, and
    its last bytes into `tail`.

    A piece whose reservation has ended meanwhile is received and thrown away, so nothing is ever
    written into space that has a new owner."""

    def __init__(
        self, reserved: ReservedBytes, pieces: Iterable[Piece], tail: bytearray | None = None
    ) -> None:
        self._reserved = reserved
        self._pieces = [piece for piece in pieces if piece.num_bytes]
        self._tail = memoryview(tail or b"")
        self._index = 0
        self._done = 0  # bytes of the current piece
        self.remaining = sum(piece.num_bytes for piece in self._pieces) + len(self._tail)

    def target(self) -> memoryview:
        """Where the next bytes go; not empty while any remain. Use it at once: it is checked
        against the store each time."""
        if self._index == len(self._pieces):
            return self._tail[-self.remaining :]
        piece = self._pieces[self._index]
        left = piece.num_bytes - self._done
        if piece.slot >= 0:
            try:
                reserved = self._reserved(piece.slot, piece.generation)
            except StoreError:
                self._pieces[self._index] = piece._replace(slot=-1)
            else:
                start = piece.offset + self._done
                return reserved[start : start + left]
        return _DRAIN[:left]

    def filled(self, num_bytes: int) -> None:
        self.remaining -= num_bytes
        if self._index == len(self._pieces):
            return
        self._done += num_bytes
        if self._done == self._pieces[self._index].num_bytes:
            self._index += 1
            self._done = 0

    def take(self, buffer: ReceiveBuffer) -> None:
        """Moves what `buffer` already holds of this payload."""
        while self.remaining and len(buffer):
            target = self.target()
            data = buffer.peek(len(target))
            target[: len(data)] = data
            buffer.consume(len(data))
            self.filled(len(data))


def drain(num_bytes: int) -> PayloadSink:
    """A sink for a payload that nobody wants."""
    return PayloadSink(_reserved_nowhere, [Piece(-1, 0, 0, num_bytes)])


def _reserved_nowhere(slot: int, generation: int) -> memoryview:
    raise AssertionError("a drained payload has no entry")

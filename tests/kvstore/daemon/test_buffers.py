"""Bytes in: bounded buffers and sinks that never write into space with another owner."""

from __future__ import annotations

import random

from moontide.kvstore.daemon.budget import Budget
from moontide.kvstore.daemon.buffers import (
    INITIAL_BYTES,
    LARGEST_BYTES,
    PayloadSink,
    Piece,
    ReceiveBuffer,
    drain,
)
from moontide.kvstore.errors import InvalidRequest

LIMIT = 64 << 20


class Entries:
    """Reservations by (slot, generation)."""

    def __init__(self, sizes: dict[tuple[int, int], int]) -> None:
        self.bytes = {key: bytearray(size) for key, size in sizes.items()}

    def buffer(self, slot: int, generation: int) -> memoryview:
        try:
            return memoryview(self.bytes[slot, generation])
        except KeyError:
            raise InvalidRequest("gone") from None


def receive(buffer: ReceiveBuffer, data: bytes) -> None:
    while data:
        room = buffer.room()
        piece, data = data[: len(room)], data[len(room) :]
        room[: len(piece)] = piece
        buffer.filled(len(piece))


def test_bytes_come_out_as_they_went_in_whatever_the_pieces() -> None:
    rng = random.Random(7)
    buffer, expected, got = ReceiveBuffer(Budget(LIMIT, "tests")), bytearray(), bytearray()
    for _ in range(300):
        piece = rng.randbytes(rng.randrange(1, 3 * INITIAL_BYTES // 2))
        receive(buffer, piece)
        expected += piece
        taken = bytes(buffer.peek(rng.randrange(0, len(buffer) + 1)))
        buffer.consume(len(taken))
        got += taken
        if len(buffer) > LARGEST_BYTES // 2:
            got += bytes(buffer.peek(len(buffer)))
            buffer.consume(len(buffer))
    got += bytes(buffer.peek(len(buffer)))
    assert got == expected


def test_a_buffer_grows_only_by_what_arrived_and_shrinks_when_empty() -> None:
    buffer = ReceiveBuffer(Budget(LIMIT, "tests"))
    receive(buffer, bytes(INITIAL_BYTES + 1))
    assert len(buffer.room()) <= 2 * INITIAL_BYTES
    buffer.consume(len(buffer))
    assert len(buffer.room()) == INITIAL_BYTES


def test_payload_goes_to_its_pieces_in_order_and_refused_ones_are_dropped() -> None:
    entries = Entries({(1, 1): 4, (2, 1): 10})
    sink = PayloadSink(
        entries.buffer,
        [Piece(1, 1, 0, 4), Piece(-1, 0, 0, 3), Piece(9, 9, 0, 0), Piece(2, 1, 5, 5)],
    )
    buffer = ReceiveBuffer(Budget(LIMIT, "tests"))
    receive(buffer, b"aaaaXXXbbbbb+next")
    sink.take(buffer)
    assert sink.remaining == 0
    assert entries.bytes == {(1, 1): b"aaaa", (2, 1): b"\0" * 5 + b"bbbbb"}
    assert bytes(buffer.peek(10)) == b"+next"


def test_a_reservation_that_ends_midway_gets_no_further_byte() -> None:
    entries = Entries({(1, 1): 8})
    space = entries.bytes[1, 1]
    sink = PayloadSink(entries.buffer, [Piece(1, 1, 0, 8)])
    sink.target()[:3] = b"aaa"
    sink.filled(3)
    del entries.bytes[1, 1]
    target = sink.target()
    target[:5] = b"bbbbb"
    sink.filled(5)
    assert sink.remaining == 0
    assert space == b"aaa" + bytes(5)


def test_draining_takes_a_large_payload_through_a_bounded_target() -> None:
    sink = drain(10 << 20)
    while sink.remaining:
        target = sink.target()
        assert 0 < len(target) <= 64 << 10
        sink.filled(len(target))

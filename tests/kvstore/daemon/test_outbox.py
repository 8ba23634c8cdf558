"""Bytes out: order, coalescing, descriptors with the right byte, pins until sent."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from moontide.kvstore.daemon.budget import Budget
from moontide.kvstore.daemon.outbox import MAX_BUFFERS, Outbox

LIMIT = 64 << 20


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.setblocking(False)
    theirs.settimeout(5)
    with ours, theirs:
        yield ours, theirs


def test_replies_are_coalesced_into_one_send(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    outbox = Outbox(Budget(LIMIT, "tests"))
    for index in range(10):
        outbox.put(f"head{index}".encode(), [memoryview(b"value")])
    expected = outbox.num_bytes
    assert outbox.send(pair[0]) == expected
    assert not outbox
    assert outbox.num_bytes == 0
    assert pair[1].recv(4096) == b"".join(f"head{index}value".encode() for index in range(10))


def test_release_runs_once_when_the_last_byte_left_and_not_before(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    outbox, released = Outbox(Budget(LIMIT, "tests")), []
    value = os.urandom(4 << 20)
    outbox.put(b"head", [memoryview(value)], on_sent=lambda: released.append(1))
    received = bytearray()
    while outbox:
        try:
            outbox.send(pair[0])
        except BlockingIOError:
            assert not released
            received += pair[1].recv(1 << 20)
    assert released == [1]
    pair[0].close()
    while piece := pair[1].recv(1 << 20):
        received += piece
    assert received == b"head" + value


def test_dropping_releases_everything_still_queued() -> None:
    outbox, released = Outbox(Budget(LIMIT, "tests")), []
    for index in range(3):
        outbox.put(b"head", on_sent=lambda index=index: released.append(index))
    outbox.drop()
    assert released == [0, 1, 2]
    assert outbox.num_bytes == 0


def test_descriptors_travel_with_the_first_byte_of_their_reply(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    read_end, write_end = os.pipe()
    outbox = Outbox(Budget(LIMIT, "tests"))
    outbox.put(b"before")
    outbox.put(b"with", descriptors=(read_end,))
    outbox.put(b"after")
    while outbox:
        outbox.send(pair[0])
    data, descriptors, _, _ = socket.recv_fds(pair[1], 6, 4)
    assert (data, descriptors) == (b"before", [])
    data, descriptors, _, _ = socket.recv_fds(pair[1], 64, 4)
    assert data == b"withafter"
    assert len(descriptors) == 1
    for descriptor in (read_end, write_end, *descriptors):
        os.close(descriptor)


def test_more_buffers_than_one_call_takes_all_arrive(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    outbox = Outbox(Budget(LIMIT, "tests"))
    outbox.put(b"", [memoryview(b"x")] * (3 * MAX_BUFFERS))
    while outbox:
        outbox.send(pair[0])
    received = b""
    while len(received) < 3 * MAX_BUFFERS:
        received += pair[1].recv(4096)
    assert received == b"x" * 3 * MAX_BUFFERS

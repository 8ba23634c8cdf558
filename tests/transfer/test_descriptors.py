"""Descriptors over a unix socket: whole, close-on-exec, or refused."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator

import pytest

from moontide.transfer import close_descriptors, receive_with_descriptors, send_with_descriptors
from moontide.transfer.errors import HandoverRefused


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    with left, right:
        yield left, right


def test_descriptors_arrive_with_the_data(pair: tuple[socket.socket, socket.socket]) -> None:
    read, write = os.pipe()
    assert send_with_descriptors(pair[0], b"data", [read, write]) == 4
    data, received = receive_with_descriptors(pair[1], 100)
    assert data == b"data"
    os.write(received[1], b"through")
    assert os.read(read, 100) == b"through"
    assert all(fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC for fd in received)
    close_descriptors([read, write, *received])


def test_plain_data_brings_no_descriptors(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[0].sendall(b"plain")
    assert receive_with_descriptors(pair[1], 3) == (b"pla", [])
    assert receive_with_descriptors(pair[1], 100) == (b"in", [])
    pair[0].close()
    assert receive_with_descriptors(pair[1], 100) == (b"", [])


def test_more_descriptors_than_expected_are_refused_and_closed(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    send_with_descriptors(pair[0], b"x", [0] * 8)
    with pytest.raises(HandoverRefused, match="lost on the way"):
        receive_with_descriptors(pair[1], 1, max_descriptors=1)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(("data", "count"), [(b"", 1), (b"x", 0), (b"x", 65)])
def test_what_cannot_be_sent_is_a_mistake(
    pair: tuple[socket.socket, socket.socket], data: bytes, count: int
) -> None:
    with pytest.raises(ValueError, match="descriptors"):
        send_with_descriptors(pair[0], data, [0] * count)

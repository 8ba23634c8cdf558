"""Who waits receives: what becomes of a connection where that goes wrong."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack

from moontide.transfer import TcpLimits

from .peers import (
    DONE,
    buffer,
    client,
    data_frame,
    next_header,
    read_of,
    scripted,
    serve_zeros,
)

HONEST = 50
"""Answers: the first comes to the stream's thread, which has connected it."""


def test_nonsense_that_a_waiter_receives_ends_the_connection_at_once() -> None:
    """Though nothing more comes by it: what was asked there is asked on the next."""

    def answers_too_much(sock: socket.socket) -> None:
        for _ in range(HONEST):
            request = next_header(sock)
            sock.sendall(data_frame(request, bytes(request.length)))
        request = next_header(sock)
        sock.sendall(data_frame(request._replace(length=request.length + 1), b""))
        assert not sock.recv(1)  # the client has ended it

    with ExitStack() as stack:
        server = scripted(stack, answers_too_much, serve_zeros)
        here = client(stack, server.address, TcpLimits(streams_per_peer=1))
        for _ in range(HONEST + 1):
            deadline = time.monotonic() + 3.0  # less than a stall
            assert here.transport.transfer([read_of(buffer(10))], deadline=deadline) == (DONE,)
        assert server.connections == 2

"""Memory of slices that have ended early, and what still comes for them."""

from __future__ import annotations

import random
import signal
import socket
import threading
import time
from contextlib import ExitStack

import pytest

from moontide.transfer import SegmentRegistry, TcpLimits
from moontide.transfer.types import SliceState, TransferCounters

from ...waiting import wait_until
from .peers import (
    DONE,
    SOON,
    buffer,
    client,
    data_frame,
    next_header,
    read_of,
    scripted,
    serve_zeros,
    serving,
)

ONE_STREAM = TcpLimits(streams_per_peer=1)


@pytest.mark.parametrize("end", ["deadline", "cancel"])
def test_r10_memory_is_let_go_in_the_middle_of_a_payload(stack: ExitStack, end: str) -> None:
    half_sent, go_on = threading.Event(), threading.Event()

    def script(sock: socket.socket) -> None:
        request = next_header(sock)
        frame = data_frame(request, b"x" * request.length)
        sock.sendall(frame[:-500_000])
        half_sent.set()
        assert go_on.wait(SOON)
        sock.sendall(frame[-500_000:])
        serve_zeros(sock)

    server = scripted(stack, script)
    here = client(stack, server.address, ONE_STREAM)
    local = buffer(1_000_000)
    batch = here.read(local, within=0.2 if end == "deadline" else SOON)
    assert half_sent.wait(SOON)
    wait_until(lambda: local[499_000] == ord("x"))
    if end == "cancel":
        here.transport.cancel(batch)
    status = here.wait(batch)
    assert status.state is (SliceState.CANCELLED if end == "cancel" else SliceState.FAILED)
    local[:] = b"b" * len(local)  # its next use
    go_on.set()
    assert here.wait(here.read(buffer(10))) == DONE  # the connection is as good as before
    assert bytes(local) == b"b" * len(local)
    assert server.connections == 1
    assert here.transport.counters() == TransferCounters(10, 0, 1, 1, 0)


def test_r51_what_nobody_wants_any_more_does_not_hold_up_what_is_asked_next(
    stack: ExitStack,
) -> None:
    """A peer that would send the megabytes of a cancelled read for minutes yet."""
    asked = threading.Event()

    def trickles(sock: socket.socket) -> None:
        request = next_header(sock)
        sock.sendall(data_frame(request, b"x" * request.length)[:1000])
        asked.set()
        assert sock.recv(1 << 16)  # the other pieces' requests
        while sock.recv(1 << 16):
            pass

    server = scripted(stack, trickles, serve_zeros)
    here = client(stack, server.address, ONE_STREAM)
    batch = here.read(buffer(4 << 20))
    assert asked.wait(SOON)
    here.transport.cancel(batch)
    assert here.wait(batch).state is SliceState.CANCELLED
    assert here.wait(here.read(buffer(10))) == DONE
    assert server.connections == 2


def test_r10_memory_of_ended_slices_is_never_touched_again(stack: ExitStack) -> None:
    """Random sizes, deadlines and cancels under load; ended slices' memory gets its next use at
    once, and keeps it."""
    rng = random.Random(1016)
    registry = SegmentRegistry()
    registry.add(0, buffer(4 << 20, b"x"))
    server = stack.enter_context(serving(registry))
    here = client(stack, server.address)
    reused: list[memoryview] = []
    for _ in range(60):
        local = [buffer(rng.choice([100, 50_000, 3 << 20])) for _ in range(4)]
        batches = [here.read(view, within=rng.choice([0.002, SOON])) for view in local]
        here.transport.cancel(rng.choice(batches))
        for view, batch in zip(local, batches, strict=True):
            status = here.wait(batch)
            if status == DONE:
                assert bytes(view) == b"x" * len(view)
            view[:] = b"b" * len(view)
        reused = [*reused[-8:], *local]
        assert all(bytes(view) == b"b" * len(view) for view in reused)
    counted = here.transport.counters()
    assert counted.slices_done + counted.slices_failed == 240
    assert counted.slices_done > 60
    assert server.report().broken == 0


def test_r10_who_is_interrupted_while_receiving_leaves_no_half_answer(stack: ExitStack) -> None:
    """The bytes that the interrupted thread did not count belong to nobody's next read."""

    def answers_half(sock: socket.socket) -> None:
        request = next_header(sock)
        sock.sendall(data_frame(request, bytes(request.length)))
        request = next_header(sock)
        sock.sendall(data_frame(request, b"x" * request.length)[:-500_000])
        interrupted.append(True)
        signal.pthread_kill(main, signal.SIGUSR1)
        assert go_on.wait(SOON)
        sock.sendall(b"x" * 500_000)
        serve_zeros(sock)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    interrupted: list[bool] = []
    go_on = threading.Event()
    main = threading.get_ident()
    before = signal.signal(signal.SIGUSR1, interrupt)
    stack.callback(signal.signal, signal.SIGUSR1, before)
    server = scripted(stack, answers_half, serve_zeros)
    here = client(stack, server.address, ONE_STREAM)
    deadline = time.monotonic() + SOON
    assert here.transport.transfer([read_of(buffer(10))], deadline=deadline) == (DONE,)
    local = buffer(1_000_000)
    with pytest.raises(KeyboardInterrupt):
        here.transport.transfer([read_of(local)], deadline=deadline)
    assert interrupted
    wait_until(lambda: here.transport.counters().slices_failed == 1)
    local[:] = b"b" * len(local)  # its next use
    go_on.set()
    other = buffer(1000)
    assert here.wait(here.read(other)) == DONE
    assert bytes(other) == bytes(1000)
    assert bytes(local) == b"b" * len(local)

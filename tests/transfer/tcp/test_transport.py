"""The TCP transport against peers that stop, vanish, lie or restart."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack

import pytest

from moontide.transfer import Access, SegmentRegistry, TcpLimits, TcpTransport, wire
from moontide.transfer.errors import InvalidRequest
from moontide.transfer.tcp.stream import StreamLimits
from moontide.transfer.types import (
    Instance,
    Opcode,
    SegmentAddress,
    SliceState,
    SliceStatus,
    TransferCounters,
    TransferRequest,
)
from moontide.transfer.wire import Header, Kind

from ...waiting import wait_until, within
from .peers import (
    DONE,
    PEER,
    SOON,
    TOKEN,
    Client,
    buffer,
    client,
    data_frame,
    exactly,
    next_header,
    read_of,
    scripted,
    serve_zeros,
    serving,
)

ONE_STREAM = TcpLimits(streams_per_peer=1)


def test_r10_a_peer_that_is_lost_twice_fails_the_slice(stack: ExitStack) -> None:
    def script(sock: socket.socket) -> None:
        request = next_header(sock)
        sock.sendall(data_frame(request, b"x" * request.length)[:-1])

    server = scripted(stack, script, script, script)
    here = client(stack, server.address, ONE_STREAM)
    status = here.wait(here.read(buffer(100_000)))
    assert (status.state, status.code) == (SliceState.FAILED, "unavailable")
    assert server.connections == 2
    assert here.transport.counters() == TransferCounters(0, 0, 0, 1, 0)


@pytest.mark.parametrize("failing", range(6))
def test_r10_a_failure_at_any_slice_is_never_reported_done(stack: ExitStack, failing: int) -> None:
    """Slice `failing` is refused; the connection ends after it, and so does the next one."""

    def answers_some(sock: socket.socket) -> None:
        requests = [next_header(sock) for _ in range(6)]
        for request in requests[:failing]:
            sock.sendall(data_frame(request, b"x" * request.length))
        sock.sendall(wire.encode_reason(requests[failing].request_id, "out_of_range: injected"))

    def leaves(sock: socket.socket) -> None:
        next_header(sock)

    here = client(stack, scripted(stack, answers_some, leaves).address, ONE_STREAM)
    local = [buffer(1000) for _ in range(6)]
    requests = [
        TransferRequest(Opcode.READ, view, SegmentAddress(PEER, 0), offset)
        for offset, view in enumerate(local)
    ]
    batch = here.transport.submit(requests, deadline=time.monotonic() + SOON)
    wait_until(lambda: batch in here.transport.finished())
    statuses = here.transport.poll(batch)
    lost = "unavailable"
    assert [status.code for status in statuses] == [
        *[""] * failing,
        "out_of_range",
        *[lost] * (5 - failing),
    ]
    for status, view in zip(statuses, local, strict=True):
        assert bytes(view) == (b"x" if status == DONE else b"-") * 1000
    assert here.transport.counters() == TransferCounters(1000 * failing, 0, failing, 6 - failing)


@pytest.mark.parametrize("opcode", list(Opcode))
def test_a_transfer_of_more_than_the_window(stack: ExitStack, opcode: Opcode) -> None:
    registry = SegmentRegistry()
    registry.add(0, buffer(8 << 20, b"x"))
    registry.add(1, landing := buffer(8 << 20), Access.LANDING)
    server = stack.enter_context(serving(registry))
    limits = TcpLimits(streams_per_peer=1, stream=StreamLimits(window_bytes=1 << 20))
    here = client(stack, server.address, limits)
    for _ in range(3):  # the first one finds no connection
        local = buffer(8 << 20, b"y")
        request = TransferRequest(opcode, local, SegmentAddress(PEER, opcode is Opcode.WRITE), 0)
        deadline = time.monotonic() + SOON
        assert here.transport.transfer([request], deadline=deadline) == (DONE,)
        assert bytes(local) == b"x" * len(local) or bytes(landing) == b"y" * len(landing)


def test_who_waits_elsewhere_does_not_spin_over_what_nobody_asked_for(stack: ExitStack) -> None:
    def speaks_out_of_turn(sock: socket.socket) -> None:
        request = next_header(sock)
        sock.sendall(data_frame(request, bytes(request.length)))
        request = next_header(sock)
        unasked = Header(Kind.DATA, request_id=1 << 40, length=1 << 20)
        sock.sendall(data_frame(request, bytes(request.length)) + wire.encode_header(unasked))
        while sock.recv(1 << 16):
            pass

    here = client(stack, scripted(stack, speaks_out_of_turn).address, ONE_STREAM)
    silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    here.transport.add_route("silent/1/00", *silent.getsockname())
    elsewhere = TransferRequest(Opcode.READ, buffer(10), SegmentAddress("silent/1/00", 0), 0)
    here.transport.transfer([read_of(buffer(10))], deadline=time.monotonic() + SOON)
    begun = time.thread_time()
    both = [read_of(buffer(10)), elsewhere]
    statuses = here.transport.transfer(both, deadline=time.monotonic() + 0.3)
    assert statuses == (DONE, SliceStatus(SliceState.FAILED, "deadline"))
    assert time.thread_time() - begun < 0.05


def test_a_waiting_transfer_ends_when_the_transport_closes(stack: ExitStack) -> None:
    def silent(sock: socket.socket) -> None:
        next_header(sock)
        asked.set()
        while sock.recv(1 << 16):
            pass

    asked = threading.Event()
    here = client(stack, scripted(stack, silent).address, ONE_STREAM)
    told: list[tuple[SliceStatus, ...]] = []

    def transfer() -> None:
        deadline = time.monotonic() + 3 * SOON
        told.append(here.transport.transfer([read_of(buffer(10))], deadline=deadline))

    waiting = threading.Thread(target=transfer)
    waiting.start()
    assert asked.wait(SOON)
    here.transport.close()
    waiting.join(SOON)
    assert told == [(SliceStatus(SliceState.FAILED, "closed"),)]


def test_a_read_is_tried_again_on_another_connection(stack: ExitStack) -> None:
    def broken(sock: socket.socket) -> None:
        request = next_header(sock)
        sock.sendall(data_frame(request, b"x" * request.length)[:-1])

    here = client(stack, scripted(stack, broken, serve_zeros).address, ONE_STREAM)
    local = buffer(100_000)
    assert here.wait(here.read(local)) == DONE
    assert bytes(local) == bytes(100_000)


def test_a_write_that_may_have_arrived_is_not_repeated(stack: ExitStack) -> None:
    def takes_it_and_leaves(sock: socket.socket) -> None:
        exactly(sock, next_header(sock).length)

    server = scripted(stack, takes_it_and_leaves, takes_it_and_leaves)
    here = client(stack, server.address, ONE_STREAM)
    status = here.wait(here.write(buffer(1000)))
    assert (status.state, status.code) == (SliceState.FAILED, "unavailable")
    assert server.connections == 1


@pytest.mark.parametrize("kind", [Kind.DONE, Kind.FAILED])
def test_r10_an_answer_to_a_write_that_is_still_being_sent_ends_the_connection(
    stack: ExitStack, kind: Kind
) -> None:
    """Else its memory would be given back while it is read."""

    def answers_at_once(sock: socket.socket) -> None:
        later = next_header(sock).request_id + 10  # the kernel does not take so much
        sock.sendall(wire.encode_header(Header(kind, request_id=later)))
        assert ended.wait(SOON)

    ended = threading.Event()
    server = scripted(stack, answers_at_once)
    window = StreamLimits(window_bytes=64 << 20)  # more than the kernel takes
    limits = TcpLimits(streams_per_peer=1, dial_seconds=0.2, stream=window)
    here = client(stack, server.address, limits)
    status = here.wait(here.write(buffer(64 << 20)))
    ended.set()
    assert (status.state, status.code) == (SliceState.FAILED, "malformed")
    assert "before it was sent" in status.reason


def test_r10_a_write_cut_short_by_its_deadline_sends_nothing_of_its_memorys_next_use(
    stack: ExitStack,
) -> None:
    reused = threading.Event()
    arrived: list[bytes] = []

    def reads_late(sock: socket.socket) -> None:
        next_header(sock)
        assert reused.wait(SOON)
        while data := sock.recv(1 << 20):
            arrived.append(data)

    server = scripted(stack, reads_late, serve_zeros)
    window = StreamLimits(window_bytes=64 << 20)  # more than the kernel takes
    here = client(stack, server.address, TcpLimits(streams_per_peer=1, stream=window))
    local = buffer(64 << 20, b"a")
    parts = (local[: 300 << 10], local[300 << 10 :])  # the kernel is full in the middle of a piece
    requests = [TransferRequest(Opcode.WRITE, part, SegmentAddress(PEER, 1), 0) for part in parts]
    batch = here.transport.submit(requests, deadline=time.monotonic() + 0.3)
    wait_until(lambda: batch in here.transport.finished())
    assert {status.reason for status in here.transport.poll(batch)} == {"deadline"}
    local[:] = b"b" * len(local)
    reused.set()
    assert here.wait(here.read(buffer(10))) == DONE
    assert server.connections == 2
    assert sum(map(len, arrived)) < len(local)
    assert not any(b"b" in data for data in arrived)


def test_r16_notices_for_unknown_ids_are_counted_and_harmless(stack: ExitStack) -> None:
    def forges(sock: socket.socket) -> None:
        request = next_header(sock)
        forged = Header(Kind.DATA, request_id=request.request_id + 77, length=request.length)
        sock.sendall(wire.encode_header(Header(Kind.DONE, request_id=12345)))
        sock.sendall(wire.encode_header(forged) + b"z" * request.length)
        sock.sendall(wire.encode_reason(2**64 - 1, "forged"))
        sock.sendall(data_frame(request, b"x" * request.length))
        sock.sendall(data_frame(request, b"y" * request.length))  # it had finished
        serve_zeros(sock)

    here = client(stack, scripted(stack, forges).address, ONE_STREAM)
    local = buffer(100_000)
    assert here.wait(here.read(local)) == DONE
    assert here.wait(here.read(buffer(10))) == DONE
    assert bytes(local) == b"x" * 100_000
    assert here.transport.counters() == TransferCounters(100_010, 0, 2, 0, unknown_notices=4)


@pytest.mark.parametrize("lie", ["length", "kind", "no answer", "garbage"])
def test_answers_that_make_no_sense_end_the_connection(stack: ExitStack, lie: str) -> None:
    def script(sock: socket.socket) -> None:
        request = next_header(sock)
        frames = {
            "length": wire.encode_header(
                Header(Kind.DATA, request_id=request.request_id, length=request.length + 1)
            ),
            "kind": wire.encode_header(Header(Kind.DONE, request_id=request.request_id)),
            "no answer": wire.encode_header(request),
            "garbage": os.urandom(32),
        }
        sock.sendall(frames[lie] + bytes(2000))

    here = client(stack, scripted(stack, script, script).address, ONE_STREAM)
    local = buffer(1000)
    status = here.wait(here.read(local))
    assert (status.state, status.code) == (SliceState.FAILED, "malformed")
    assert bytes(local) == b"-" * 1000


def test_a_silent_peer_is_left_after_the_stall(stack: ExitStack) -> None:
    def silent(sock: socket.socket) -> None:
        while sock.recv(1 << 16):
            pass

    limits = TcpLimits(streams_per_peer=1, stream=StreamLimits(stall_seconds=0.1))
    here = client(stack, scripted(stack, silent, silent).address, limits)
    status = here.wait(here.read(buffer(10)))
    assert (status.state, status.code) == (SliceState.FAILED, "unavailable")
    assert "0.1 s" in status.reason


def test_a_peer_that_falls_silent_is_left_after_the_stall_however_idle_one_may_be(
    stack: ExitStack,
) -> None:
    def answer_once(sock: socket.socket) -> None:
        request = next_header(sock)
        sock.sendall(data_frame(request, bytes(request.length)))
        while sock.recv(1 << 16):
            pass

    limits = TcpLimits(
        streams_per_peer=1, stream=StreamLimits(stall_seconds=0.1, idle_seconds=10 * SOON)
    )
    here = client(stack, scripted(stack, answer_once, answer_once).address, limits)
    assert here.wait(here.read(buffer(10))) == DONE
    assert here.wait(here.read(buffer(10))) == DONE  # at the second attempt, on a new connection
    status = here.wait(here.read(buffer(10)))
    assert status.state is SliceState.FAILED
    assert status.code in ("unavailable", "unreachable")  # as the peer ends the third attempt


@pytest.mark.parametrize(("dial_seconds", "reason"), [(0.1, "unavailable"), (5.0, "deadline")])
def test_a_peer_that_never_shakes_hands(stack: ExitStack, dial_seconds: float, reason: str) -> None:
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    limits = TcpLimits(dial_seconds=dial_seconds)
    here = client(stack, listener.getsockname(), limits)
    with within(2.0):
        assert here.wait(here.read(buffer(10), within=0.5)).code == reason


def test_nobody_listens(stack: ExitStack) -> None:
    bound = stack.enter_context(socket.socket())
    bound.bind(("127.0.0.1", 0))  # so that nobody else does
    here = client(stack, bound.getsockname())
    status = here.wait(here.read(buffer(5 << 20)))
    assert status.code == "unreachable"
    assert PEER in status.reason


def test_the_token_is_proved_by_both_sides(stack: ExitStack) -> None:
    registry = SegmentRegistry()
    registry.add(0, buffer(100))
    server = stack.enter_context(serving(registry))
    stranger = Client(server.address, token=b"guess")
    stack.callback(stranger.transport.close)
    assert stranger.wait(stranger.read(buffer(10))).code == "access_denied"
    wait_until(lambda: server.report().refused == 1)

    def impostor() -> None:
        sock, _ = listener.accept()
        with sock:
            sock.sendall(wire.encode_body(wire.Challenge(bytes(32))))
            exactly(sock, next_header(sock).length)
            sock.sendall(wire.encode_body(wire.Welcome(1, bytes(32))))
            assert sock.recv(1) == b""  # not one request

    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    thread = threading.Thread(target=impostor)
    thread.start()
    here = client(stack, listener.getsockname(), ONE_STREAM)
    status = here.wait(here.read(buffer(10)))
    assert status.code == "access_denied"
    assert "does not hold" in status.reason
    thread.join(SOON)


def test_r25_a_peer_restarted_under_its_address_is_another_one(stack: ExitStack) -> None:
    """A restart loop under load: bytes come only from the instance that was addressed."""
    port = 0
    stale: list[Client] = []
    for life in range(1, 5):
        instance = str(Instance("peer", 1, bytes([life] * 16)))
        registry = SegmentRegistry()
        registry.add(0, buffer(200_000, bytes([life])))
        with serving(registry, instance=instance, port=port) as server:
            port = server.address[1]
            fresh = Client(server.address, instance=instance)
            stack.callback(fresh.transport.close)
            local = buffer(200_000)
            assert fresh.wait(fresh.read(local)) == DONE
            assert set(bytes(local)) == {life}
            for old in stale:
                local = buffer(200_000)
                status = old.wait(old.read(local))
                assert status.code == "other_instance"
                assert old.instance in status.reason
                assert set(bytes(local)) == {ord("-")}
            stale.append(fresh)
            running = fresh.read(buffer(200_000))
        assert fresh.wait(running).state in (SliceState.DONE, SliceState.FAILED)


def test_routes_come_and_go(stack: ExitStack) -> None:
    def silent(sock: socket.socket) -> None:
        while sock.recv(1 << 16):
            pass

    transport = TcpTransport(TOKEN, Instance.new("here"), TcpLimits(max_routes=1))
    stack.callback(transport.close)
    transport.add_route("a", "127.0.0.1", 1)
    with pytest.raises(InvalidRequest, match="at most 1"):
        transport.add_route("b", "127.0.0.1", 1)
    here = client(stack, scripted(stack, silent).address)
    batch = here.read(buffer(10))
    here.transport.drop_route(PEER)
    assert here.wait(batch).code == "no_route"
    assert here.wait(here.read(buffer(10))).code == "no_route"
    registry = SegmentRegistry()
    registry.add(0, buffer(10))
    server = stack.enter_context(serving(registry))
    here.transport.add_route(PEER, *server.address)
    here.transport.add_route(PEER, *server.address)
    assert here.wait(here.read(buffer(10))) == DONE


def test_idle_connections_end_and_come_back(stack: ExitStack) -> None:
    registry = SegmentRegistry()
    registry.add(0, buffer(100))
    server = stack.enter_context(serving(registry))
    here = client(stack, server.address, TcpLimits(stream=StreamLimits(idle_seconds=0.05)))
    for accepted in (1, 2):
        assert here.wait(here.read(buffer(100))) == DONE
        wait_until(lambda: server.report().connections == 0)
        assert server.report().accepted == accepted
    assert server.report().broken == 0


def test_an_idle_connection_outlives_the_stall(stack: ExitStack) -> None:
    registry = SegmentRegistry()
    registry.add(0, buffer(100))
    server = stack.enter_context(serving(registry))
    limits = TcpLimits(stream=StreamLimits(stall_seconds=0.05, idle_seconds=10 * SOON))
    here = client(stack, server.address, limits)
    for _ in range(2):
        assert here.wait(here.read(buffer(100))) == DONE
        time.sleep(0.3)  # idle for six times the stall
    report = server.report()
    assert (report.connections, report.accepted, report.broken) == (1, 1, 0)


PEER_PROCESS = f"""
import socket, sys
from moontide.transfer import SegmentRegistry, TransferServer
registry = SegmentRegistry()
registry.add(0, memoryview(bytes(1 << 20)) )
listener = socket.create_server(("127.0.0.1", 0))
server = TransferServer(listener, token={TOKEN!r}, instance={PEER!r}, segments=registry)
server.start()
print(server.address[1], flush=True)
sys.stdin.read()
"""


def test_a_stopped_and_a_killed_process(stack: ExitStack) -> None:
    peer = subprocess.Popen(
        [sys.executable, "-c", PEER_PROCESS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    stack.enter_context(peer)
    stack.callback(peer.kill)
    assert peer.stdout is not None
    here = client(stack, ("127.0.0.1", int(peer.stdout.readline())))
    assert here.wait(here.read(buffer(1 << 20))) == DONE
    peer.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, peer.pid, os.WSTOPPED | os.WNOWAIT)
    with within(2.0):
        assert here.wait(here.read(buffer(1 << 20), within=0.3)).reason == "deadline"
    with within(3.0):
        batch = here.read(buffer(1 << 20))
        peer.kill()
        assert here.wait(batch).code in ("unavailable", "unreachable")

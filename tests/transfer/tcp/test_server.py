"""The transfer server against many peers, slow ones, broken ones and hostile ones."""

from __future__ import annotations

import os
import random
import socket
from contextlib import ExitStack, suppress

import pytest

from moontide.transfer import Access, SegmentRegistry, ServerLimits, TransferServer, wire
from moontide.transfer.types import TransferCounters
from moontide.transfer.wire import Header, Kind

from ...waiting import wait_until, within
from .peers import (
    DONE,
    PEER,
    SOON,
    TOKEN,
    Client,
    client,
    connect,
    exactly,
    next_header,
    serving,
)

CONTENT = os.urandom(4 << 20)
IMPATIENT = ServerLimits(handshake_seconds=0.3, stall_seconds=0.3, idle_seconds=SOON)


def registry() -> SegmentRegistry:
    made = SegmentRegistry()
    made.add(0, memoryview(CONTENT))
    made.add(1, memoryview(bytearray(4 << 20)), Access.LANDING)
    return made


def check_reads(here: Client, num_bytes: int = 100_000) -> None:
    local = memoryview(bytearray(num_bytes))
    assert here.wait(here.read(local, 1000)) == DONE
    assert local == CONTENT[1000 : 1000 + num_bytes]


def test_both_ends_count_the_same(stack: ExitStack) -> None:
    server = stack.enter_context(serving(registry()))
    here = client(stack, server.address)
    check_reads(here, 300_000)
    assert here.wait(here.write(memoryview(bytes(5000)))) == DONE
    assert here.wait(here.read(memoryview(bytearray(10)), 1 << 30)).code == "out_of_range"
    assert here.transport.counters() == TransferCounters(300_000, 5000, 2, 1)
    moved = TransferCounters(5000, 300_000, 2, 1)
    wait_until(lambda: server.report().moved == moved)
    report = server.report()
    assert (report.connections, report.refused, report.broken) == (1, 0, 0)


def test_64_peers_at_once_slow_and_broken_ones_among_them(stack: ExitStack) -> None:
    server = stack.enter_context(serving(registry()))
    for number in range(48):
        sock = stack.enter_context(socket.create_connection(server.address))
        if number % 3 == 0:
            continue  # says nothing
        if number % 3 == 1:
            sock.sendall(os.urandom(100))
            continue
        greedy = stack.enter_context(connect(server.address))
        read = wire.encode_header(Header(Kind.READ, 0, 1, 0, 4 << 20))
        greedy.sendall(read * 16)  # and never takes the answers
    peers = [client(stack, server.address) for _ in range(16)]
    local = [memoryview(bytearray(200_000)) for _ in peers]
    batches = [peer.read(view) for peer, view in zip(peers, local, strict=True)]
    for peer, view, batch in zip(peers, local, batches, strict=True):
        assert peer.wait(batch) == DONE
        assert view == CONTENT[:200_000]


def test_more_connections_than_the_bound_are_refused_with_a_reason(stack: ExitStack) -> None:
    server = stack.enter_context(serving(registry(), ServerLimits(max_connections=2)))
    held = [stack.enter_context(connect(server.address)) for _ in range(2)]
    here = client(stack, server.address)
    status = here.wait(here.read(memoryview(bytearray(10))))
    assert status.code == "busy"
    assert "2 connections" in status.reason
    held[0].close()
    wait_until(lambda: server.report().connections == 1)
    check_reads(here)


@pytest.mark.parametrize("how", ["silent", "half a header", "no reader", "half a write"])
def test_stalled_peers_are_dropped(stack: ExitStack, how: str) -> None:
    segments = registry()
    server = stack.enter_context(serving(segments, IMPATIENT))
    if how == "silent":
        sock = stack.enter_context(socket.create_connection(server.address))
    else:
        sock = stack.enter_context(connect(server.address))
        frames = {
            "half a header": b"MX",
            "no reader": wire.encode_header(Header(Kind.READ, 0, 1, 0, 4 << 20)) * 16,
            "half a write": wire.encode_header(Header(Kind.WRITE, 1, 1, 0, 1000)) + bytes(500),
        }
        sock.sendall(frames[how])
    wait_until(lambda: server.report().accepted == 1)
    wait_until(lambda: server.report().connections == 0)
    assert server.report().broken == 1
    assert segments.is_idle(0)
    assert segments.is_idle(1)
    assert server.report().moved == TransferCounters()
    check_reads(client(stack, server.address))


def test_an_idle_peer_is_dropped_without_ado(stack: ExitStack) -> None:
    limits = ServerLimits(stall_seconds=0.3, idle_seconds=0.05)
    server = stack.enter_context(serving(registry(), limits))
    sock = stack.enter_context(connect(server.address))
    assert sock.recv(1) == b""
    assert server.report().broken == 0


def test_r69_a_server_that_closes_idle_connections_is_read_on_new_ones(stack: ExitStack) -> None:
    """However soon after the end the next read comes."""
    limits = ServerLimits(stall_seconds=0.3, idle_seconds=0.3)  # a quarter of a stall, then idle
    server = stack.enter_context(serving(registry(), limits))
    here = client(stack, server.address)
    for accepted in range(1, 4):
        check_reads(here)
        wait_until(lambda: server.report().connections == 0)
        assert server.report().accepted >= accepted


def test_requests_are_answered_in_order_and_refusals_keep_the_frame(stack: ExitStack) -> None:
    segments = registry()
    server = stack.enter_context(serving(segments))
    sock = stack.enter_context(connect(server.address))
    write = Header(Kind.WRITE, 0, 2, 0, 200_000)  # segment 0 is no landing segment
    sock.sendall(
        wire.encode_header(Header(Kind.READ, 0, 1, 5, 10))
        + wire.encode_header(write)
        + bytes(200_000)
        + wire.encode_header(Header(Kind.WRITE, 1, 3, 0, 4))
        + b"land"
        + wire.encode_header(Header(Kind.READ, 1, 4, 0, 5))
    )
    assert next_header(sock) == Header(Kind.DATA, 0, 1, 0, 10)
    assert exactly(sock, 10) == CONTENT[5:15]
    refused = next_header(sock)
    assert (refused.kind, refused.request_id) == (Kind.FAILED, 2)
    assert exactly(sock, refused.length).startswith(b"read_only:")
    assert next_header(sock) == Header(Kind.DONE, 0, 3, 0, 0)
    assert next_header(sock) == Header(Kind.DATA, 0, 4, 0, 5)
    assert exactly(sock, 5) == b"land\0"


def challenge_from(sock: socket.socket) -> wire.Challenge:
    body = exactly(sock, next_header(sock).length)
    return wire.decode_body(Kind.CHALLENGE, body, wire.Challenge)


def test_versions_without_overlap_are_refused_by_name(stack: ExitStack) -> None:
    server = stack.enter_context(serving(registry()))
    sock = stack.enter_context(socket.create_connection(server.address, SOON))
    challenge = challenge_from(sock)
    hello = wire.Hello(3, 4, "new/1/00", PEER, bytes(32), b"")
    proof = wire.client_proof(TOKEN, challenge, hello)
    sock.sendall(wire.encode_body(wire.Hello(3, 4, "new/1/00", PEER, bytes(32), proof)))
    header = next_header(sock)
    refusal = wire.decode_body(header.kind, exactly(sock, header.length), wire.Refusal)
    assert refusal.code == "version_mismatch"
    assert "3..4" in refusal.message


def test_a_recorded_handshake_cannot_be_played_again(stack: ExitStack) -> None:
    server = stack.enter_context(serving(registry()))
    sock = stack.enter_context(socket.create_connection(server.address, SOON))
    challenge = challenge_from(sock)
    unproven = wire.Hello(1, 1, "a/1/00", PEER, bytes(32), b"")
    proof = wire.client_proof(TOKEN, challenge, unproven)
    recorded = wire.encode_body(wire.Hello(1, 1, "a/1/00", PEER, bytes(32), proof))
    sock.sendall(recorded)
    assert next_header(sock).kind is Kind.WELCOME
    replay = stack.enter_context(socket.create_connection(server.address, SOON))
    exactly(replay, next_header(replay).length)
    replay.sendall(recorded)
    assert next_header(replay).kind is Kind.REFUSED


def hostile(rng: random.Random) -> bytes:
    """A few frames, some of them damaged."""
    frames = bytearray()
    for _ in range(rng.randint(1, 5)):
        kind = rng.choice(list(Kind))
        length = rng.choice([0, 1, 100, 1 << 20, wire.MAX_PIECE_BYTES, 2**63])
        frames += wire.HEADER.pack(
            b"MX", 1, kind, rng.randrange(3), rng.randrange(9), rng.choice([0, 2, 1 << 61]), length
        )
        frames += rng.randbytes(rng.randint(0, 300))
    for _ in range(rng.randint(0, 3)):
        frames[rng.randrange(len(frames))] = rng.randrange(256)
    return bytes(frames)


def test_hostile_bytes_end_only_their_own_connection(stack: ExitStack) -> None:
    rng = random.Random(20251)
    server = stack.enter_context(serving(registry(), IMPATIENT))
    here = client(stack, server.address)
    for number in range(200):
        try:
            if number % 2:
                sock = connect(server.address)
            else:
                sock = socket.create_connection(server.address, SOON)
            with sock:
                sock.sendall(hostile(rng))
        except OSError:
            continue  # it was thrown out already
        if number % 50 == 0:
            check_reads(here)
    check_reads(here)
    wait_until(lambda: server.report().connections <= 2)


def test_close_ends_every_connection_and_lets_go(stack: ExitStack) -> None:
    segments = registry()
    server: TransferServer
    with ExitStack() as closing, serving(segments) as server:
        here = client(stack, server.address)
        check_reads(here)
        sock = stack.enter_context(connect(server.address))
        sock.sendall(wire.encode_header(Header(Kind.READ, 0, 1, 0, 4 << 20)) * 16)
        closing.enter_context(within(2.0))
    assert server.report().connections == 0
    assert segments.is_idle(0)
    assert here.wait(here.read(memoryview(bytearray(10)))).code == "unreachable"
    server.close()


def test_silent_connections_do_not_keep_out_those_that_speak(stack: ExitStack) -> None:
    """Of one address, a quarter of all connections may be in the handshake: who comes beyond ends
    the one that waited longest; those that are known stay."""
    server = stack.enter_context(serving(registry(), ServerLimits(max_connections=16)))
    here = client(stack, server.address)
    assert here.wait(here.read(memoryview(bytearray(10)))) == DONE
    storm = [stack.enter_context(socket.create_connection(server.address)) for _ in range(100)]
    wait_until(lambda: server.report().accepted == 101)
    wait_until(lambda: server.report().connections <= 1 + 4)
    assert here.wait(here.read(memoryview(bytearray(10)))) == DONE
    new = client(stack, server.address)
    assert new.wait(new.read(memoryview(bytearray(10)))) == DONE
    for sock in storm[:90]:
        sock.settimeout(SOON)
        with suppress(ConnectionError):
            while sock.recv(1 << 12):  # a challenge, or why not
                pass

"""The engine over real connections: order, failover, broken peers and their return, many peers."""

from __future__ import annotations

import queue
import random
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import pytest

from moontide.transfer import SegmentRegistry, TcpTransport, TransferServer
from moontide.transfer.engine import (
    BreakerLimits,
    EngineLimits,
    Rail,
    RailName,
    TransferEngine,
    tcp_engine,
)
from moontide.transfer.engine.types import ANYWHERE
from moontide.transfer.errors import Busy, InvalidRequest
from moontide.transfer.types import (
    BatchId,
    Instance,
    Opcode,
    Priority,
    SegmentAddress,
    SliceState,
    SliceStatus,
    TransferRequest,
)

from ...conformance.transport_rigs import Gate, GatedRegistry
from ...waiting import wait_until
from ..tcp.peers import (
    DONE,
    PEER,
    SOON,
    TOKEN,
    data_frame,
    next_header,
    scripted,
    serving,
)

CONTENT = random.Random(11).randbytes(8 << 20)
LEFT, RIGHT = RailName("left"), RailName("right")
QUICK = EngineLimits(
    breaker=BreakerLimits(first_pause_seconds=0.01, last_pause_seconds=0.05, probe_seconds=1.0)
)


class Redirected:
    """Routes of a transport that lead to another port: its rail's own way to the peer."""

    def __init__(self, transport: TcpTransport, port: int) -> None:
        self._transport = transport
        self._port = port

    def add_route(self, instance: str, host: str, port: int) -> None:
        self._transport.add_route(instance, host, self._port)

    def drop_route(self, instance: str) -> None:
        self._transport.drop_route(instance)


def engine_over(
    stack: ExitStack, ports: dict[RailName, int], limits: EngineLimits = QUICK
) -> tuple[TransferEngine, dict[RailName, TcpTransport]]:
    """Each rail to a port of its own; the first one is preferred."""
    transports = {name: TcpTransport(TOKEN, Instance.new("here")) for name in ports}
    rails = [
        Rail(name, "tcp", transport, Redirected(transport, ports[name]))
        for name, transport in transports.items()
    ]
    engine = TransferEngine(rails, limits, ranks={ANYWHERE: [[name] for name in ports]})
    stack.callback(engine.close)
    engine.add_route(PEER, "127.0.0.1", 0)
    return engine, transports


def refusing(stack: ExitStack) -> socket.socket:
    """Has a port where nobody listens, until it does."""
    sock = stack.enter_context(socket.socket())
    sock.bind(("127.0.0.1", 0))
    return sock


def serve_at(stack: ExitStack, listener: socket.socket) -> None:
    listener.listen()
    server = TransferServer(listener, token=TOKEN, instance=PEER, segments=registry())
    server.start()
    stack.callback(server.close)


def port_of(sock: socket.socket) -> int:
    port: int = sock.getsockname()[1]
    return port


def registry(segments: SegmentRegistry | None = None) -> SegmentRegistry:
    segments = segments or SegmentRegistry()
    segments.add(0, memoryview(CONTENT))
    return segments


def reads(num_bytes: int, count: int = 1, instance: str = PEER) -> list[TransferRequest]:
    """Of the start of the content, into memory of their own."""
    return [
        TransferRequest(
            Opcode.READ, memoryview(bytearray(num_bytes)), SegmentAddress(instance, 0), 0
        )
        for _ in range(count)
    ]


def run(engine: TransferEngine, requests: Sequence[TransferRequest]) -> tuple[SliceStatus, ...]:
    batch = engine.submit(requests, deadline=time.monotonic() + SOON)
    statuses = engine.wait(batch)
    engine.forget(batch)
    for request, status in zip(requests, statuses, strict=True):
        assert status != DONE or request.local == CONTENT[: request.local.nbytes]
    return statuses


def test_r10_what_a_dead_rail_fails_comes_over_the_other_and_the_rail_is_taken_back(
    stack: ExitStack,
) -> None:
    broken = refusing(stack)
    server = stack.enter_context(serving(registry()))
    engine, rails = engine_over(stack, {LEFT: port_of(broken), RIGHT: server.address[1]})
    for _ in range(3):
        assert run(engine, reads(8 << 20)) == (DONE,)
    assert rails[LEFT].counters().bytes_in == 0
    serve_at(stack, broken)
    wait_until(lambda: run(engine, reads(1000)) == (DONE,) and is_used(rails[LEFT]))
    before = rails[RIGHT].counters().bytes_in
    assert run(engine, reads(8 << 20)) == (DONE,)
    assert rails[RIGHT].counters().bytes_in == before


def is_used(transport: TcpTransport) -> bool:
    return transport.counters().bytes_in >= 1000


def test_r10_a_rail_that_breaks_off_in_the_middle_corrupts_nothing(stack: ExitStack) -> None:
    def break_off(sock: socket.socket) -> None:
        request = next_header(sock)
        sock.sendall(data_frame(request, bytes([255]) * request.length)[:-1])

    broken = scripted(stack, *[break_off] * 30)
    server = stack.enter_context(serving(registry()))
    engine, rails = engine_over(stack, {LEFT: broken.address[1], RIGHT: server.address[1]})
    assert run(engine, reads(100_000, 8)) == (DONE,) * 8
    assert rails[LEFT].counters().slices_failed > 0
    assert engine.counters().slices_failed == 0
    assert engine.counters().bytes_in == 800_000


def test_r52_a_dead_peer_is_refused_at_once_and_found_again_when_it_is_back(
    stack: ExitStack,
) -> None:
    peer = refusing(stack)
    engine, _ = engine_over(stack, {LEFT: port_of(peer)}, EngineLimits())
    while engine.is_reachable(PEER):
        [status] = run(engine, reads(10))
        assert status.code == "unreachable"
    batch = engine.submit(reads(10), deadline=time.monotonic() + SOON)
    [status] = engine.poll(batch)  # nothing was waited for
    assert (status.state, status.code) == (SliceState.FAILED, "unavailable")
    assert "probed" in status.reason
    serve_at(stack, peer)
    wait_until(lambda: engine.is_reachable(PEER))
    assert run(engine, reads(10)) == (DONE,)


def test_r52_a_peer_that_accepts_and_says_nothing_is_refused_at_once_too(stack: ExitStack) -> None:
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    limits = EngineLimits(breaker=BreakerLimits(failures=2, silent_seconds=0.05))
    engine, _ = engine_over(stack, {LEFT: port_of(listener)}, limits)
    for _ in range(2):
        batch = engine.submit(reads(10), deadline=time.monotonic() + 0.1)
        assert engine.wait(batch) == (SliceStatus(SliceState.FAILED, "deadline"),)
    assert not engine.is_reachable(PEER)


def test_without_rails_nobody_is_reached_and_nobody_waits(stack: ExitStack) -> None:
    engine, _ = engine_over(stack, {})
    assert not engine.is_reachable(PEER)
    [status] = run(engine, reads(10))
    assert status.code == "unavailable"


Held = tuple[TransferEngine, Gate]


@pytest.fixture
def held(stack: ExitStack) -> Held:
    """One parcel at a time is under way to a peer that does not answer until its gate opens."""
    gate = Gate()
    server = stack.enter_context(serving(registry(GatedRegistry(gate))))
    limits = EngineLimits(path_bytes=1 << 16, parcel_bytes=1 << 16)
    engine, _ = engine_over(stack, {LEFT: server.address[1]}, limits)
    stack.callback(gate.open.set)
    gate.open.clear()
    return engine, gate


def submit(
    engine: TransferEngine,
    priority: Priority,
    name: str,
    ended: queue.SimpleQueue[tuple[str, tuple[SliceStatus, ...]]],
) -> BatchId:
    return engine.submit(
        reads(1 << 16),
        deadline=time.monotonic() + SOON,
        priority=priority,
        then=lambda statuses: ended.put((name, statuses)),
    )


def test_a_hand_off_goes_before_replication_that_was_asked_for_earlier(held: Held) -> None:
    engine, gate = held
    ended: queue.SimpleQueue[tuple[str, tuple[SliceStatus, ...]]] = queue.SimpleQueue()
    for name in ("first", "second", "third"):
        submit(engine, Priority.BACKGROUND, name, ended)
    submit(engine, Priority.URGENT, "hand-off", ended)
    gate.open.set()
    order = [ended.get(timeout=SOON) for _ in range(4)]
    assert [name for name, _ in order] == ["first", "hand-off", "second", "third"]
    assert {statuses for _, statuses in order} == {(DONE,)}


def test_r10_what_only_waits_ends_at_once_when_cancelled_and_late_when_it_is_late(
    held: Held,
) -> None:
    engine, gate = held
    under_way = engine.submit(reads(1 << 16), deadline=time.monotonic() + SOON)
    waiting = engine.submit(reads(1 << 16), deadline=time.monotonic() + SOON)
    late = engine.submit(reads(1 << 16), deadline=time.monotonic() + 0.05)
    engine.cancel(waiting)
    assert engine.poll(waiting) == (SliceStatus(SliceState.CANCELLED),)
    assert engine.wait(late) == (SliceStatus(SliceState.FAILED, "deadline"),)
    gate.open.set()
    assert engine.wait(under_way) == (DONE,)
    assert run(engine, reads(10)) == (DONE,)


def test_a_dropped_peer_fails_what_waits_and_what_is_under_way(held: Held) -> None:
    engine, gate = held
    batches = [engine.submit(reads(1 << 16), deadline=time.monotonic() + SOON) for _ in range(3)]
    engine.drop_route(PEER)
    assert {status.code for batch in batches for status in engine.wait(batch)} == {"no_route"}
    gate.open.set()


def test_bounds_are_busy_at_once_whichever_peer_is_slow(stack: ExitStack) -> None:
    gate = Gate()
    server = stack.enter_context(serving(registry(GatedRegistry(gate))))
    stack.callback(gate.open.set)
    engine = tcp_engine(TOKEN, Instance.new("here"))
    stack.callback(engine.close)
    engine.add_route(PEER, *server.address)
    gate.open.clear()
    memory = memoryview(bytearray(64 << 20))
    request = TransferRequest(Opcode.READ, memory, SegmentAddress(PEER, 0), 0)
    batches = [engine.submit([request], deadline=time.monotonic() + SOON) for _ in range(4)]
    with pytest.raises(Busy):
        engine.submit([request], deadline=time.monotonic() + SOON)
    for batch in batches:
        engine.cancel(batch)
        assert engine.wait(batch) == (SliceStatus(SliceState.CANCELLED),)


def test_r26_64_peers_at_once_slow_and_broken_ones_among_them(stack: ExitStack) -> None:
    instances = [str(Instance(f"peer-{n}", n, bytes(16))) for n in range(64)]
    silent = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=64))
    ports: dict[str, int] = {}
    for number, instance in enumerate(instances):
        if number % 8 == 0:
            ports[instance] = port_of(silent)
        elif number % 8 == 1:
            ports[instance] = port_of(refusing(stack))
        else:
            server = stack.enter_context(serving(registry(), instance=instance))
            ports[instance] = server.address[1]
    engine = tcp_engine(TOKEN, Instance.new("here"))
    stack.callback(engine.close)
    for instance, port in ports.items():
        engine.add_route(instance, "127.0.0.1", port)
    ended: queue.SimpleQueue[tuple[str, tuple[SliceStatus, ...]]] = queue.SimpleQueue()
    for number, instance in enumerate(instances):
        engine.submit(
            reads(100_000, 2, instance),
            deadline=time.monotonic() + (0.5 if number % 8 == 0 else SOON),
            then=_tell(ended, instance),
        )
    results = dict(ended.get(timeout=2 * SOON) for _ in instances)
    for number, instance in enumerate(instances):
        codes = {status.code for status in results[instance]}
        if number % 8 == 0:
            assert codes == {"deadline"}
        elif number % 8 == 1:
            assert codes == {"unreachable"}
        else:
            assert results[instance] == (DONE, DONE)
    assert engine.counters().slices_done == 48 * 2


def _tell(
    ended: queue.SimpleQueue[tuple[str, tuple[SliceStatus, ...]]], instance: str
) -> Callable[[tuple[SliceStatus, ...]], None]:
    return lambda statuses: ended.put((instance, statuses))


def test_latencies_are_told_by_transport_opcode_and_result(stack: ExitStack) -> None:
    server = stack.enter_context(serving(registry()))
    engine, _ = engine_over(stack, {LEFT: server.address[1]})
    run(engine, reads(10, 3))
    beyond = TransferRequest(
        Opcode.READ, memoryview(bytearray(1)), SegmentAddress(PEER, 0), len(CONTENT)
    )
    run(engine, [beyond])
    run(engine, reads(10, 2, "nobody/1/00"))
    counts = {
        (each.transport, each.opcode, each.result): sum(each.counts) for each in engine.latencies()
    }
    assert counts == {
        ("tcp", "read", "done"): 3,
        ("tcp", "read", "failed"): 1,
        ("none", "read", "failed"): 2,
    }


def test_cards_that_are_not_there_are_refused_by_name(stack: ExitStack) -> None:
    with pytest.raises(InvalidRequest, match="no-such-card"):
        tcp_engine(TOKEN, Instance.new("here"), cards=["no-such-card"])


def test_a_card_is_left_by_its_own_address(stack: ExitStack) -> None:
    server = stack.enter_context(serving(registry()))
    engine = tcp_engine(TOKEN, Instance.new("here"), cards=["lo"])
    stack.callback(engine.close)
    engine.add_route(PEER, *server.address)
    assert run(engine, reads(1000)) == (DONE,)

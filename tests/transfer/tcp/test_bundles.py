"""Small slices of one batch share a frame, and each keeps its own status."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress

import pytest

from moontide.transfer import Access, SegmentRegistry, ServerLimits, TcpLimits, wire
from moontide.transfer.tcp.stream import StreamLimits
from moontide.transfer.types import (
    Opcode,
    SegmentAddress,
    SliceState,
    SliceStatus,
    TransferCounters,
    TransferRequest,
)
from moontide.transfer.wire import Header, Kind

from ...waiting import wait_until
from .peers import (
    DONE,
    PEER,
    SOON,
    Client,
    buffer,
    client,
    connect,
    exactly,
    next_header,
    read_of,
    scripted,
    serve_zeros,
    serving,
)

ONE_STREAM = TcpLimits(streams_per_peer=1)
COUNT = 6
CONTENT = random.Random(29).randbytes(1 << 20)


def write_of(local: memoryview, offset: int, segment: int = 1) -> TransferRequest:
    return TransferRequest(Opcode.WRITE, local, SegmentAddress(PEER, segment), offset)


def transfer(here: Client, requests: Sequence[TransferRequest]) -> tuple[SliceStatus, ...]:
    return here.transport.transfer(requests, deadline=time.monotonic() + SOON)


def writes_from(sock: socket.socket) -> tuple[list[Header], bytes]:
    """The next frame, which must be a bundle; all payloads."""
    header = next_header(sock)
    assert header.kind is Kind.WRITES
    table = exactly(sock, wire.table_bytes(header))
    return wire.decode_writes(header, table), exactly(sock, header.length - len(table))


def reads_from(sock: socket.socket, count: int) -> list[Header]:
    reads = [next_header(sock) for _ in range(count)]
    assert [read.request_id for read in reads] == list(
        range(reads[0].request_id, reads[0].request_id + count)
    )
    return reads


def test_small_writes_go_in_one_frame_with_one_answer(stack: ExitStack) -> None:
    def script(sock: socket.socket) -> None:
        writes, payload = writes_from(sock)
        received.append((writes, payload))
        sock.sendall(wire.encode_header(wire.success(writes)))
        with suppress(ConnectionError):
            next_header(sock)

    received: list[tuple[list[Header], bytes]] = []
    here = client(stack, scripted(stack, script).address, ONE_STREAM)
    local = [buffer(100 + index, bytes([97 + index])) for index in range(COUNT)]
    requests = [write_of(view, 1000 * index) for index, view in enumerate(local)]
    assert transfer(here, requests) == (DONE,) * COUNT
    [(writes, payload)] = received
    assert [(write.offset, write.length) for write in writes] == [
        (1000 * index, 100 + index) for index in range(COUNT)
    ]
    assert payload == b"".join(local)
    assert here.transport.counters() == TransferCounters(0, len(payload), COUNT, 0, 0)


@pytest.mark.parametrize("refused", [(), (0,), (3,), (COUNT - 1,), (0, 1, 4), tuple(range(COUNT))])
@pytest.mark.parametrize("opcode", list(Opcode))
def test_r10_each_slice_of_a_bundle_keeps_its_own_status(
    stack: ExitStack, opcode: Opcode, refused: tuple[int, ...]
) -> None:
    registry = SegmentRegistry()
    registry.add(0, memoryview(CONTENT))
    registry.add(1, landing := buffer(100_000), Access.LANDING)
    server = stack.enter_context(serving(registry))
    here = client(stack, server.address, ONE_STREAM)
    segment = opcode is Opcode.WRITE
    local = [buffer(500 + index, bytes([97 + index])) for index in range(COUNT)]
    requests = [
        TransferRequest(
            opcode,
            view,
            SegmentAddress(PEER, segment),
            (1 << 30 if index in refused else 0) + 1000 * index,
        )
        for index, view in enumerate(local)
    ]
    for _ in range(2):  # by the stream's thread, and by this one
        statuses = transfer(here, requests)
        assert [status.code for status in statuses] == [
            "out_of_range" if index in refused else "" for index in range(COUNT)
        ]
    for index, view in enumerate(local):
        done, span = index not in refused, slice(1000 * index, 1000 * index + len(view))
        filled = bytes([97 + index]) * len(view)
        if opcode is Opcode.READ:
            assert bytes(view) == (CONTENT[span] if done else filled)
        else:
            assert bytes(landing[span]) == (filled if done else b"-" * len(view))
    wait_until(lambda: registry.is_idle(segment))
    failed = 2 * len(refused)
    wait_until(lambda: server.report().moved.slices_failed == failed)
    wait_until(lambda: server.report().moved.slices_done == 2 * COUNT - failed)


def test_a_peer_of_version_1_gets_and_sends_single_frames(stack: ExitStack) -> None:
    def answers(sock: socket.socket) -> None:
        writes = []
        for _ in range(COUNT):
            writes.append(next_header(sock))
            assert exactly(sock, writes[-1].length) == b"w" * 100
        kinds.extend(write.kind for write in writes)
        for write in writes:
            sock.sendall(wire.encode_header(Header(Kind.DONE, request_id=write.request_id)))

    kinds: list[Kind] = []
    here = client(stack, scripted(stack, answers, version=1).address, ONE_STREAM)
    requests = [write_of(buffer(100, b"w"), 1000 * index) for index in range(COUNT)]
    assert transfer(here, requests) == (DONE,) * COUNT
    assert kinds == [Kind.WRITE] * COUNT


def test_a_client_of_version_1_is_served_in_single_frames(stack: ExitStack) -> None:
    registry = SegmentRegistry()
    registry.add(0, memoryview(CONTENT))
    server = stack.enter_context(serving(registry))
    old = stack.enter_context(connect(server.address, newest_version=1))
    reads = [Header(Kind.READ, 0, 1 + index, 10 * index, 10) for index in range(COUNT)]
    old.sendall(b"".join(wire.encode_header(read) for read in reads))
    for read in reads:
        assert next_header(old) == Header(Kind.DATA, 0, read.request_id, 0, 10)
        assert exactly(old, 10) == CONTENT[read.offset : read.offset + 10]
    old.sendall(wire.encode_writes([read._replace(kind=Kind.WRITE) for read in reads]))
    wait_until(lambda: server.report().broken == 1)


def test_r10_a_bundle_that_is_lost_half_way_is_done_for_no_write_and_read_again(
    stack: ExitStack,
) -> None:
    def half(sock: socket.socket) -> None:
        reads = reads_from(sock, COUNT)
        frame = wire.encode_header(wire.success(reads)) + b"x" * 1000 * COUNT
        sock.sendall(frame[: -1000 * COUNT // 2])

    def takes_it_and_leaves(sock: socket.socket) -> None:
        for read in reads_from(sock, COUNT):
            sock.sendall(wire.encode_header(wire.success([read])) + b"y" * 1000)
        writes_from(sock)

    server = scripted(stack, half, takes_it_and_leaves, serve_zeros)
    here = client(stack, server.address, ONE_STREAM)
    local = [buffer(1000) for _ in range(COUNT)]
    assert transfer(here, [read_of(view) for view in local]) == (DONE,) * COUNT
    assert all(bytes(view) == b"y" * 1000 for view in local)
    statuses = transfer(here, [write_of(view, 0) for view in local])
    assert {status.code for status in statuses} == {"unavailable"}
    assert server.connections == 2


LIES = {
    "one more": lambda reads: wire.success(reads)._replace(offset=COUNT + 1),
    "one less": lambda reads: wire.success(reads)._replace(offset=COUNT - 1),
    "one byte more": lambda reads: wire.success(reads)._replace(length=1000 * COUNT + 1),
    "from another": lambda reads: wire.success(reads)._replace(request_id=1 << 40),
    "done": lambda reads: Header(Kind.DONES, 0, reads[0].request_id, COUNT),
    "too many": lambda reads: wire.success(reads)._replace(offset=1 << 40),
    "a request": lambda reads: Header(Kind.WRITES, 0, reads[0].request_id, COUNT, 1000),
}


@pytest.mark.parametrize("lie", LIES)
def test_r10_answers_for_many_that_make_no_sense_are_done_for_none(
    stack: ExitStack, lie: str
) -> None:
    def script(sock: socket.socket) -> None:
        header = LIES[lie](reads_from(sock, COUNT))
        sock.sendall(wire.encode_header(header) + b"x" * 20_000)
        assert not sock.recv(1)  # the client has ended it

    here = client(stack, scripted(stack, script, script).address, ONE_STREAM)
    local = [buffer(1000) for _ in range(COUNT)]
    statuses = transfer(here, [read_of(view) for view in local])
    assert {status.code for status in statuses} == {"malformed"}
    assert all(bytes(view) == b"-" * 1000 for view in local)


def test_r10_memory_of_one_of_two_batches_is_let_go_within_a_bundle(stack: ExitStack) -> None:
    """Whose answers are under way; the other batch's come where they belong."""

    half_sent, go_on = threading.Event(), threading.Event()

    def answers(sock: socket.socket) -> None:
        first = reads_from(sock, 1)
        sock.sendall(wire.encode_header(wire.success(first)) + bytes(first[0].length))
        reads = reads_from(sock, 2 * COUNT)
        payload = b"".join(bytes([97 + index]) * 50_000 for index in range(2 * COUNT))
        frame = wire.encode_header(wire.success(reads)) + payload
        sock.sendall(frame[:125_000])  # within the third
        half_sent.set()
        assert go_on.wait(SOON)
        sock.sendall(frame[125_000:])
        serve_zeros(sock)

    here = client(stack, scripted(stack, answers).address, ONE_STREAM)
    assert here.wait(here.read(buffer(10))) == DONE
    local = [buffer(50_000) for _ in range(2 * COUNT)]
    deadline = time.monotonic() + SOON
    batches = [
        here.transport.submit([read_of(view) for view in local[index::2]], deadline=deadline)
        for index in range(2)
    ]
    assert half_sent.wait(SOON)
    here.transport.cancel(batches[0])
    wait_until(lambda: batches[0] in here.transport.finished())
    assert {each.state for each in here.transport.poll(batches[0])} == {SliceState.CANCELLED}
    for view in local[::2]:
        view[:] = b"!" * len(view)  # its next use
    go_on.set()
    assert here.transport.wait(batches[1]) == (DONE,) * COUNT
    # The requests of the first batch were all sent before those of the second.
    for index, view in enumerate(local[1::2]):
        assert bytes(view) == bytes([97 + COUNT + index]) * len(view)
    assert here.wait(here.read(buffer(10))) == DONE
    assert all(bytes(view) == b"!" * len(view) for view in local[::2])


def test_r10_writes_of_an_ended_batch_are_not_sent_with_others_that_they_wait_beside(
    stack: ExitStack,
) -> None:
    def reads_late(sock: socket.socket) -> None:
        assert cancelled.wait(SOON)
        while (write := next_header(sock)).kind is Kind.WRITE:
            exactly(sock, write.length)
            sock.sendall(wire.encode_header(wire.success([write])))
        received.append(exactly(sock, write.length)[wire.table_bytes(write) :])
        sock.sendall(wire.encode_header(write._replace(kind=Kind.DONES, length=0)))

    cancelled = threading.Event()
    received: list[bytes] = []
    window = StreamLimits(window_bytes=64 << 20)  # more than the kernel takes
    limits = TcpLimits(streams_per_peer=1, stream=window)
    here = client(stack, scripted(stack, reads_late).address, limits)
    deadline = time.monotonic() + SOON
    large = here.write(buffer(30 << 20))
    views = [buffer(1000, bytes([97 + index])) for index in range(COUNT)]
    kept, ended = (
        here.transport.submit([write_of(view, 0) for view in part], deadline=deadline)
        for part in (views[: COUNT // 2], views[COUNT // 2 :])
    )
    here.transport.cancel(ended)
    wait_until(lambda: here.transport.poll(ended)[0].state is SliceState.CANCELLED)
    cancelled.set()
    assert here.wait(large) == DONE
    assert here.transport.wait(kept) == (DONE,) * (COUNT // 2)
    assert received == [b"".join(views[: COUNT // 2])]


def hostile_bundle(rng: random.Random) -> bytes:
    """Lies in its table, its count, its length, or is cut off."""
    count = rng.choice([2, 3, wire.MAX_BUNDLE_SLICES])
    sizes = [rng.choice([0, 1, 100, 1000, wire.MAX_BUNDLE_BYTES, 2**32 - 1]) for _ in range(count)]
    if rng.random() < 0.7:
        sizes = [rng.randint(1, 1000) for _ in range(count)]
    writes = [
        Header(Kind.WRITE, rng.choice([0, 1, 1, 9]), 5 + n, rng.choice([0, 50_000, 1 << 61]), size)
        for n, size in enumerate(sizes)
    ]
    frame = bytearray(wire.encode_writes(writes))
    frame += rng.randbytes(min(sum(sizes), 10_000))
    for _ in range(rng.choice([0, 0, 1, 4])):
        frame[rng.randrange(4, 40)] = rng.randrange(256)
    return bytes(frame[: rng.randint(1, len(frame))] if rng.random() < 0.3 else frame)


def test_hostile_bundles_end_only_their_own_connection(stack: ExitStack) -> None:
    rng = random.Random(1129)
    registry = SegmentRegistry()
    registry.add(0, memoryview(CONTENT))
    memory = buffer(120_000)
    registry.add(1, memory[:60_000], Access.LANDING)
    server = stack.enter_context(serving(registry, ServerLimits(stall_seconds=0.3)))
    here = client(stack, server.address)
    for number in range(150):
        with suppress(OSError), connect(server.address) as sock:
            sock.sendall(hostile_bundle(rng) + hostile_bundle(rng))
        if number % 50 == 0:
            local = [buffer(1000) for _ in range(COUNT)]
            assert transfer(here, [read_of(view) for view in local]) == (DONE,) * COUNT
            assert all(view == CONTENT[:1000] for view in local)
    wait_until(lambda: server.report().connections <= 2)
    wait_until(lambda: registry.is_idle(1))
    assert bytes(memory[60_000:]) == b"-" * 60_000  # it is no part of the segment

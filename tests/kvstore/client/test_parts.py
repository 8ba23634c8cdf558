"""The client's parts without a daemon: splitting, timers, frames, running writes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moontide.kvstore import InvalidRequest, StoreTimeout, StoreUnavailable, wire
from moontide.kvstore.client.batches import (
    MAX_ENTRY_ID_BYTES,
    MAX_VALUE_BYTES,
    batches,
)
from moontide.kvstore.client.connections.address import TcpAddress, UnixAddress, parse_address
from moontide.kvstore.client.connections.frames import ConnectionLost, Frame, FrameReader
from moontide.kvstore.client.connections.timers import Timers
from moontide.kvstore.client.connections.writes import RunningWrites
from moontide.kvstore.client.deadline import Deadline
from moontide.kvstore.keys import EntryId

from .helpers import SECONDS


@given(st.lists(st.tuples(st.integers(1, 1025), st.integers(0, 12 << 20)), max_size=60))
def test_batches_cover_everything_in_order_within_the_limits(
    items: list[tuple[int, int]],
) -> None:
    entries = [EntryId(b"k" * size) for size, _ in items]
    sizes = [size for _, size in items]
    parts = list(batches(entries, sizes))
    assert [index for part in parts for index in range(part.start, part.stop)] == list(
        range(len(items))
    )
    for part in parts:
        assert part.stop - part.start <= wire.MAX_KEYS
        assert sum(map(len, entries[part])) <= MAX_ENTRY_ID_BYTES
        assert sum(sizes[part]) <= MAX_VALUE_BYTES or part.stop - part.start == 1


def test_the_largest_batch_fits_a_frame() -> None:
    entries = [EntryId(b"s" + b"k" * 1024)] * 20000
    for part in batches(entries):
        count = part.stop - part.start
        message = wire.Put(list(entries[part]), [2**32] * count, [2**64 - 1] * count)
        frame = wire.encode_frame(message, 1)
        assert wire.decode_header(frame).body_bytes <= wire.MAX_BODY_BYTES


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("unix:/run/store.sock", UnixAddress("/run/store.sock")),
        ("unix:relative", UnixAddress("relative")),
        ("tcp://host:7420", TcpAddress("host", 7420)),
        ("tcp://[::1]:7420", TcpAddress("::1", 7420)),
    ],
)
def test_addresses(text: str, expected: object) -> None:
    assert parse_address(text) == expected


def test_timers_run_when_due_in_order_unless_cancelled() -> None:
    timers, ran = Timers(), []
    first = timers.call_at(1.0, lambda: ran.append("first"))
    timers.call_at(3.0, lambda: ran.append("third"))
    timers.call_at(2.0, lambda: ran.append("second"))
    assert timers.next_at() == 1.0
    first.cancel()
    assert timers.next_at() == 2.0
    timers.run_due(2.5)
    assert ran == ["second"]
    timers.run_due(9.0)
    assert ran == ["second", "third"]
    assert timers.next_at() is None


def test_a_deadline_passes() -> None:
    with pytest.raises(StoreTimeout, match=r"the test did not finish within 1e-09 s"):
        Deadline(1e-9).check("the test")
    with pytest.raises(InvalidRequest, match="timeout of inf"):
        Deadline(float("inf"))


def test_a_new_connection_waits_for_the_writes_of_an_ended_one() -> None:
    writes = RunningWrites()
    writes.begin_connection(1)
    writes.begin_connection(2)
    with ThreadPoolExecutor(1) as another:
        with writes.of(2):  # a live connection's writes do not count
            another.submit(writes.wait_quiesced, Deadline(SECONDS)).result()
        with writes.of(1):
            writes.end_connection(1)
            with pytest.raises(StoreTimeout, match="still ran"):
                another.submit(writes.wait_quiesced, Deadline(0.01)).result()
            waiting = another.submit(writes.wait_quiesced, Deadline(SECONDS))
        waiting.result()
    with pytest.raises(StoreUnavailable), writes.of(1):
        pass


def test_a_thread_that_waits_runs_no_write_whatever_an_interrupt_left_behind() -> None:
    writes = RunningWrites()
    writes.begin_connection(1)
    writes.begin(1)
    writes.end_connection(1)
    writes.wait_quiesced(Deadline(0.01))


# -- frames -----------------------------------------------------------------------


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, FrameReader]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    reader = FrameReader(ours)
    with ours, theirs:
        yield theirs, reader
        reader.close()


def frames(reader: FrameReader) -> list[Frame]:
    found = []
    while True:
        try:
            reader.receive()
        except BlockingIOError:
            return found
        while frame := reader.next():
            found.append(frame)


def test_frames_arrive_whole_however_they_are_cut(
    pair: tuple[socket.socket, FrameReader],
) -> None:
    sender, reader = pair
    payload = bytes(range(256)) * 40
    stream = wire.encode_frame(wire.Ok(), 1)
    stream += wire.encode_frame(wire.GetReply([len(payload)], [7]), 2, len(payload)) + payload
    stream += wire.encode_frame(wire.CountReply(3), 3)
    for step in (1, 7, 1000, len(stream)):
        found: list[Frame] = []
        for start in range(0, len(stream), step):
            sender.sendall(stream[start : start + step])
            found += frames(reader)
        assert [frame.request_id for frame in found] == [1, 2, 3]
        assert [len(frame.payload) for frame in found] == [0, len(payload), 0]
        assert found[1].payload == payload
        assert found[2].message == wire.CountReply(3)


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n",
        wire.HEADER.pack(b"MT", 1, 0, 1, wire.MAX_BODY_BYTES + 1, 0),
        wire.HEADER.pack(b"MT", 9, 0, 1, 1, 0) + b"\x90",
        wire.HEADER.pack(b"MT", 1, 0, 1, 1, 0) + b"\xc1",
        wire.encode_frame(wire.GetStats(), 1),
    ],
)
def test_malformed_replies_end_the_connection(
    pair: tuple[socket.socket, FrameReader], data: bytes
) -> None:
    sender, reader = pair
    sender.sendall(data)
    with pytest.raises(ConnectionLost, match="malformed"):
        frames(reader)


def test_the_end_of_the_stream_is_told(pair: tuple[socket.socket, FrameReader]) -> None:
    sender, reader = pair
    sender.sendall(wire.encode_frame(wire.Ok(), 1)[:5])
    sender.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionLost, match="closed"):
        frames(reader)


def test_a_descriptor_that_was_announced_must_have_come(
    pair: tuple[socket.socket, FrameReader],
) -> None:
    with pytest.raises(ConnectionLost, match="descriptor"):
        pair[1].take_descriptor()

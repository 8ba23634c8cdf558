"""One suite for every transport (transport_rigs.py)."""

from __future__ import annotations

import queue
import random
import select
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from moontide.transfer import Limits
from moontide.transfer.errors import Busy, InvalidRequest, Unavailable
from moontide.transfer.types import (
    BatchId,
    Instance,
    Opcode,
    SegmentAddress,
    SliceState,
    SliceStatus,
    TransferCounters,
    TransferRequest,
)

from ..waiting import wait_until
from .transport_rigs import CONTENT, LANDING, PEER, READABLE, SEGMENT_BYTES, SOON, TRANSPORTS, Rig

SMALL = Limits(max_bytes=SEGMENT_BYTES, max_slices=16, max_batches=8)
UNKNOWN = 9
DONE = SliceStatus(SliceState.DONE)


@pytest.fixture(params=TRANSPORTS)
def make(request: pytest.FixtureRequest, stack: ExitStack, tmp_path: Path) -> Callable[..., Rig]:
    def make(limits: Limits | None = None) -> Rig:
        return TRANSPORTS[request.param](stack, tmp_path, limits or Limits())

    return make


@pytest.fixture
def rig(make: Callable[..., Rig]) -> Rig:
    return make()


def buffer(num_bytes: int, fill: bytes = b"\0") -> memoryview:
    return memoryview(bytearray(fill * num_bytes))


def read(local: memoryview, offset: int = 0, segment: int = READABLE) -> TransferRequest:
    return TransferRequest(Opcode.READ, local, SegmentAddress(PEER, segment), offset)


def write(local: memoryview, offset: int = 0, segment: int = LANDING) -> TransferRequest:
    return TransferRequest(Opcode.WRITE, local, SegmentAddress(PEER, segment), offset)


def submit(rig: Rig, *requests: TransferRequest, within: float = SOON) -> BatchId:
    return rig.transport.submit(requests, deadline=time.monotonic() + within)


def transfer(rig: Rig, *requests: TransferRequest, within: float = SOON) -> tuple[SliceStatus, ...]:
    return rig.transport.transfer(requests, deadline=time.monotonic() + within)


def wait(rig: Rig, batch: BatchId) -> list[SliceStatus]:
    """Until the transport says by its descriptor that the batch has finished."""
    poller = select.poll()
    poller.register(rig.transport.fileno(), select.POLLIN)
    end = time.monotonic() + SOON
    while time.monotonic() < end:
        poller.poll((end - time.monotonic()) * 1000)
        if batch in rig.transport.finished():
            statuses = list(rig.transport.poll(batch))
            assert SliceState.PENDING not in [status.state for status in statuses]
            return statuses
    raise AssertionError(f"batch {batch} never finished: {rig.transport.poll(batch)}")


def run(rig: Rig, *requests: TransferRequest) -> list[SliceStatus]:
    batch = submit(rig, *requests)
    statuses = wait(rig, batch)
    rig.transport.forget(batch)
    return statuses


@pytest.mark.parametrize("num_bytes", [1, 63, 4096, 65537, (1 << 20) + 1, SEGMENT_BYTES])
def test_done_means_the_bytes_are_there(rig: Rig, num_bytes: int) -> None:
    offset = (SEGMENT_BYTES - num_bytes) // 2
    local = buffer(num_bytes)
    assert run(rig, read(local, offset)) == [DONE]
    assert local == CONTENT[offset : offset + num_bytes]
    source = memoryview(CONTENT)[:num_bytes]
    assert run(rig, write(source, offset)) == [DONE]
    assert rig.landed(offset, offset + num_bytes) == source
    assert rig.landed(0, offset) == bytes(offset)


def test_many_slices_of_one_batch_each_find_their_place(rig: Rig) -> None:
    local = buffer(300 * 1000)
    pieces = [local[start : start + 1000] for start in range(0, len(local), 1000)]
    offsets = [(7919 * index) % (SEGMENT_BYTES - 1000) for index in range(len(pieces))]
    assert run(rig, *map(read, pieces, offsets)) == [DONE] * 300
    for piece, offset in zip(pieces, offsets, strict=True):
        assert piece == CONTENT[offset : offset + 1000]


def test_a_batch_mixes_reads_and_writes(rig: Rig) -> None:
    large, local = buffer(2 << 20, b"x"), buffer(2 << 20)
    assert run(rig, write(large), read(local), write(buffer(10, b"y"), 3 << 20)) == [DONE] * 3
    assert local == CONTENT[: 2 << 20]
    assert rig.landed(0, 2 << 20) == large
    assert rig.landed(3 << 20, (3 << 20) + 11) == b"y" * 10 + b"\0"


def test_each_slice_has_its_own_status_and_reason(rig: Rig) -> None:
    local = buffer(4)
    statuses = run(
        rig,
        read(local),
        read(buffer(4), segment=UNKNOWN),
        read(buffer(4), offset=SEGMENT_BYTES - 3),
        write(buffer(4), segment=READABLE),
        write(buffer(4), offset=SEGMENT_BYTES),
        read(buffer(4), offset=1 << 61),
        TransferRequest(Opcode.READ, buffer(4), SegmentAddress(PEER + "0", READABLE), 0),
    )
    assert [status.code for status in statuses[:6]] == [
        "",
        "unknown_segment",
        "out_of_range",
        "read_only",
        "out_of_range",
        "out_of_range",
    ]
    assert statuses[0] == DONE
    assert all(status.state is SliceState.FAILED for status in statuses[1:])
    assert str(SEGMENT_BYTES) in statuses[2].reason
    assert local == CONTENT[:4]


def test_r10_only_what_was_done_is_counted_as_moved(rig: Rig) -> None:
    run(rig, read(buffer(1000)), read(buffer(50), segment=UNKNOWN), write(buffer(30)))
    rig.transport.cancel(batch := submit(rig, read(buffer(10))))
    [status] = wait(rig, batch)
    done = 1000 + 10 * (status == DONE)
    assert rig.transport.counters() == TransferCounters(
        bytes_in=done,
        bytes_out=30,
        slices_done=2 + (status == DONE),
        slices_failed=1 + (status != DONE),
    )


def test_r25_addresses_of_another_instance_are_refused(rig: Rig) -> None:
    restarted = str(Instance("peer", 1, bytes([1] * 16)))
    request = TransferRequest(Opcode.READ, buffer(4), SegmentAddress(restarted, READABLE), 0)
    [status] = run(rig, request)
    assert status.state is SliceState.FAILED
    assert restarted in status.reason


@pytest.mark.parametrize("opcode", list(Opcode))
def test_r10_after_its_deadline_a_slice_is_failed_and_its_memory_let_go(
    rig: Rig, opcode: Opcode
) -> None:
    rig.hold()
    local = buffer(1 << 20, b"a")
    request = read(local) if opcode is Opcode.READ else write(local)
    started = time.monotonic()
    batch = submit(rig, request, within=0.1)
    [status] = wait(rig, batch)
    assert status == SliceStatus(SliceState.FAILED, "deadline")
    assert 0.1 <= time.monotonic() - started < 5
    local[:] = b"b" * len(local)  # the memory has another use now
    rig.resume()
    assert run(rig, read(buffer(10))) == [DONE]
    assert bytes(local) == b"b" * len(local)
    assert rig.transport.poll(batch) == (status,)


def test_r10_a_cancelled_slice_ends_and_its_memory_is_let_go(rig: Rig) -> None:
    rig.hold()
    local = buffer(1 << 20, b"a")
    batch = submit(rig, read(local), read(buffer(10)))
    assert {status.state for status in rig.transport.poll(batch)} == {SliceState.PENDING}
    rig.transport.cancel(batch)
    assert {status.state for status in wait(rig, batch)} == {SliceState.CANCELLED}
    local[:] = b"b" * len(local)
    rig.resume()
    assert run(rig, read(buffer(10))) == [DONE]
    assert bytes(local) == b"b" * len(local)


def test_cancel_after_the_end_changes_nothing(rig: Rig) -> None:
    batch = submit(rig, read(buffer(10)))
    assert wait(rig, batch) == [DONE]
    rig.transport.cancel(batch)
    assert rig.transport.poll(batch) == (DONE,)
    rig.transport.cancel(BatchId(12345))


def test_a_deadline_that_has_passed_moves_nothing(rig: Rig) -> None:
    local = buffer(10)
    batch = submit(rig, read(local), within=-1.0)
    assert wait(rig, batch) == [SliceStatus(SliceState.FAILED, "deadline")]
    assert bytes(local) == bytes(10)


def test_a_lost_peer_is_a_failure_not_a_hang(rig: Rig) -> None:
    assert run(rig, read(buffer(10))) == [DONE]
    rig.lose()
    statuses = run(rig, read(buffer(2 << 20)), write(buffer(10)))
    assert [status.state for status in statuses] == [SliceState.FAILED] * 2
    assert {status.code for status in statuses} <= {"unavailable", "unreachable", "unknown_segment"}


def test_a_finished_batch_is_told_once_and_polled_until_forgotten(rig: Rig) -> None:
    batch = submit(rig, read(buffer(10)))
    wait(rig, batch)
    assert rig.transport.finished() == []
    poller = select.poll()
    poller.register(rig.transport.fileno(), select.POLLIN)
    assert poller.poll(0) == []
    assert rig.transport.poll(batch) == rig.transport.poll(batch) == (DONE,)
    rig.transport.forget(batch)
    with pytest.raises(InvalidRequest, match=str(batch)):
        rig.transport.poll(batch)
    rig.transport.forget(batch)


def test_who_waits_for_a_batch_is_told_and_nobody_else(rig: Rig) -> None:
    rig.hold()
    batch = submit(rig, read(buffer(10)), write(buffer(10)))
    told: list[tuple[SliceStatus, ...]] = []
    waiter = threading.Thread(target=lambda: told.append(rig.transport.wait(batch)))
    waiter.start()
    rig.resume()
    waiter.join(SOON)
    assert told == [(DONE, DONE)]
    assert rig.transport.finished() == []


def test_a_wait_for_what_has_ended_returns_and_takes_the_notice_back(rig: Rig) -> None:
    batch = submit(rig, read(buffer(10)))
    poller = select.poll()
    poller.register(rig.transport.fileno(), select.POLLIN)
    assert poller.poll(SOON * 1000)
    assert rig.transport.wait(batch) == (DONE,)
    assert rig.transport.finished() == []
    assert poller.poll(0) == []
    rig.transport.forget(batch)
    with pytest.raises(InvalidRequest, match=str(batch)):
        rig.transport.wait(batch)


def test_who_gave_then_is_told_once_and_nobody_else(rig: Rig) -> None:
    told: queue.SimpleQueue[tuple[SliceStatus, ...]] = queue.SimpleQueue()
    local = buffer(10)
    requests = [read(local), read(buffer(4), segment=UNKNOWN)]
    batch = rig.transport.submit(requests, deadline=time.monotonic() + SOON, then=told.put)
    statuses = told.get(timeout=SOON)
    assert [status.code for status in statuses] == ["", "unknown_segment"]
    assert local == CONTENT[:10]
    assert run(rig, read(buffer(10))) == [DONE]
    assert told.empty()
    with pytest.raises(InvalidRequest, match=str(batch)):  # forgotten by itself
        rig.transport.poll(batch)


def test_who_raises_when_told_harms_nobody_else(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    def raises(statuses: tuple[SliceStatus, ...]) -> None:
        told.put(statuses)
        raise ValueError("a mistake")

    told: queue.SimpleQueue[tuple[SliceStatus, ...]] = queue.SimpleQueue()
    late = SliceStatus(SliceState.FAILED, "deadline")
    rig.hold()
    rig.transport.submit([read(buffer(10))], deadline=time.monotonic() + 0.05, then=raises)
    assert told.get(timeout=SOON) == (late,)
    assert wait(rig, submit(rig, read(buffer(10)), within=0.05)) == [late]
    rig.resume()
    rig.transport.submit([read(buffer(10))], deadline=time.monotonic() + SOON, then=raises)
    assert told.get(timeout=SOON) == (DONE,)
    assert run(rig, read(buffer(10))) == [DONE]
    wait_until(lambda: caplog.text.count("ValueError: a mistake") == 2)  # logged after it was told


def test_what_is_cancelled_is_told_to_who_gave_then(rig: Rig) -> None:
    rig.hold()
    told: queue.SimpleQueue[tuple[SliceStatus, ...]] = queue.SimpleQueue()
    requests = [read(buffer(10))]
    batch = rig.transport.submit(requests, deadline=time.monotonic() + SOON, then=told.put)
    rig.transport.cancel(batch)
    rig.resume()
    assert told.get(timeout=SOON) == (SliceStatus(SliceState.CANCELLED),)


def test_a_wait_ends_with_the_deadline(rig: Rig) -> None:
    rig.hold()
    batch = submit(rig, read(buffer(10)), within=0.05)
    try:
        assert rig.transport.wait(batch) == (SliceStatus(SliceState.FAILED, "deadline"),)
    finally:
        rig.resume()


@pytest.mark.parametrize("num_bytes", [1, 4096, SEGMENT_BYTES])
def test_a_transfer_is_submitted_awaited_and_forgotten(
    make: Callable[..., Rig], num_bytes: int
) -> None:
    rig = make(SMALL)
    source, offset = memoryview(CONTENT)[:num_bytes], SEGMENT_BYTES - num_bytes
    for _ in range(SMALL.max_batches + 1):
        local = buffer(num_bytes)
        assert transfer(rig, read(local, offset)) == (DONE,)
        assert local == CONTENT[offset:]
    assert transfer(rig, write(source, offset)) == (DONE,)
    assert rig.landed(offset, SEGMENT_BYTES) == source
    assert transfer(rig, read(buffer(4), segment=UNKNOWN))[0].code == "unknown_segment"
    assert rig.transport.finished() == []


def test_transfers_of_many_threads_each_get_their_own(rig: Rig) -> None:
    def work(number: int) -> None:
        rng = random.Random(number)
        for _ in range(20):
            offset = rng.randrange(SEGMENT_BYTES - (200 << 10))
            local = [buffer(rng.choice([100, 70 << 10, 200 << 10])) for _ in range(3)]
            statuses = transfer(rig, *[read(view, offset) for view in local])
            ok = statuses == (DONE,) * 3 and all(
                view == CONTENT[offset : offset + len(view)] for view in local
            )
            right.append(ok)

    right: list[bool] = []
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    assert right == [True] * 80


def test_r10_a_transfer_ends_with_its_deadline_and_its_memory_is_let_go(rig: Rig) -> None:
    rig.hold()
    local = buffer(1 << 20)
    assert transfer(rig, read(local), within=0.05) == (SliceStatus(SliceState.FAILED, "deadline"),)
    local[:] = b"b" * len(local)  # the memory has another use now
    rig.resume()
    assert transfer(rig, read(buffer(10))) == (DONE,)
    assert bytes(local) == b"b" * len(local)


def test_bounds_are_busy_at_once_and_free_again(make: Callable[..., Rig]) -> None:
    rig = make(SMALL)
    rig.hold()
    half = SEGMENT_BYTES // 2
    first = submit(rig, read(buffer(half)))
    with pytest.raises(Busy, match=str(SMALL.max_bytes)):
        submit(rig, read(buffer(half + 1)))
    with pytest.raises(Busy, match=str(SMALL.max_slices)):
        submit(rig, *[read(buffer(1))] * SMALL.max_slices)
    rig.resume()
    assert wait(rig, first) == [DONE]
    assert run(rig, read(buffer(SEGMENT_BYTES))) == [DONE]


def test_batches_that_nobody_forgets_are_bounded(make: Callable[..., Rig]) -> None:
    rig = make(SMALL)
    batches = [submit(rig, read(buffer(1))) for _ in range(SMALL.max_batches)]
    with pytest.raises(Busy, match="not forgotten"):
        submit(rig, read(buffer(1)))
    rig.transport.forget(batches[0])
    deadline = time.monotonic() + SOON
    while time.monotonic() < deadline:  # forgotten once its slice has ended
        try:
            submit(rig, read(buffer(1)))
        except Busy:
            continue
        return
    raise AssertionError("a forgotten batch still counts")


def test_bad_arguments_are_refused_before_anything_moves(make: Callable[..., Rig]) -> None:
    rig = make(SMALL)
    bad = [
        [],
        [read(buffer(0))],
        [read(memoryview(b"read-only"))],
        [read(memoryview(bytearray(8)).cast("Q"))],
        [read(buffer(8)[::2])],
        [read(buffer(8), offset=-1)],
        [read(buffer(8), segment=-1)],
        [read(buffer(SEGMENT_BYTES + 1))],
        [read(buffer(1))] * (SMALL.max_slices + 1),
    ]
    for requests in bad:
        with pytest.raises(InvalidRequest):
            submit(rig, *requests)
    assert run(rig, read(buffer(SEGMENT_BYTES))) == [DONE]


def test_close_ends_what_is_pending(rig: Rig) -> None:
    rig.hold()
    local = buffer(1 << 20)
    batch = submit(rig, read(local))
    closing = threading.Thread(target=rig.transport.close)
    closing.start()
    wait_until(lambda: rig.transport.poll(batch)[0].state is not SliceState.PENDING, SOON)
    assert rig.transport.poll(batch) == (SliceStatus(SliceState.FAILED, "closed"),)
    rig.resume()
    closing.join(SOON)
    assert not closing.is_alive()
    with pytest.raises(Unavailable, match="closed"):
        submit(rig, read(local))
    rig.transport.close()
    assert bytes(local) == bytes(1 << 20)

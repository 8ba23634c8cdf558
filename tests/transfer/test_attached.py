"""Segments attached to the shm and file transports; and the transport that fails on purpose."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from moontide.transfer import (
    DirectFile,
    FileAccess,
    FileSpan,
    FileTransport,
    Mapping,
    Segment,
    ShmTransport,
    Transport,
)
from moontide.transfer.errors import Busy, HandoverRefused
from moontide.transfer.types import (
    Opcode,
    SegmentAddress,
    SliceState,
    SliceStatus,
    TransferRequest,
    boot_id,
)

from ..faulty_transport import Faults, FaultyTransport

HERE = SegmentAddress("node/1/00", 0)
DONE = SliceStatus(SliceState.DONE)


def run(
    transport: Transport, opcode: Opcode, *local: memoryview, at: SegmentAddress = HERE
) -> tuple[SliceStatus, ...]:
    requests = [TransferRequest(opcode, view, at, 0) for view in local]
    batch = transport.submit(requests, deadline=time.monotonic() + 10)
    end = time.monotonic() + 10
    while batch not in transport.finished():
        assert time.monotonic() < end
    return transport.poll(batch)


@pytest.fixture
def shared(stack: ExitStack) -> tuple[ShmTransport, Segment]:
    segment = Segment(1 << 20, name="shared")
    stack.callback(segment.close)
    segment.buffer[:4] = b"data"
    transport = ShmTransport()
    stack.callback(transport.close)
    return transport, segment


def test_r24_shared_memory_needs_the_same_boot_and_instance(
    shared: tuple[ShmTransport, Segment],
) -> None:
    transport, segment = shared
    mapping = Mapping(os.dup(segment.readable_descriptor), segment.num_bytes)
    with pytest.raises(HandoverRefused, match=r"another-boot.*use tcp"):
        transport.attach(HERE, mapping, boot="another-boot")
    transport.attach(HERE, mapping, boot=boot_id())
    local = memoryview(bytearray(4))
    assert run(transport, Opcode.READ, local) == (DONE,)
    assert bytes(local) == b"data"
    restarted = SegmentAddress("node/1/01", 0)
    [status] = run(transport, Opcode.READ, local, at=restarted)
    assert status.code == "unknown_segment"


def test_a_mapping_handed_over_for_reading_is_not_written(
    shared: tuple[ShmTransport, Segment],
) -> None:
    transport, segment = shared
    readable = Mapping(os.dup(segment.readable_descriptor), segment.num_bytes)
    granted = Mapping(os.dup(segment.descriptor), segment.num_bytes, writable=True)
    transport.attach(HERE, readable, boot=boot_id())
    [status] = run(transport, Opcode.WRITE, memoryview(b"new!"))
    assert status.code == "read_only"
    transport.attach(HERE, granted, boot=boot_id())
    assert run(transport, Opcode.WRITE, memoryview(b"new!")) == (DONE,)
    assert segment.buffer[:4] == b"new!"


def test_a_file_that_ends_early_or_is_closed_for_writing_fails_the_slice(
    stack: ExitStack, tmp_path: Path
) -> None:
    path = tmp_path / "region"
    path.write_bytes(bytes(1 << 16))
    file = DirectFile(path, FileAccess.READ)
    stack.callback(file.close)
    transport = FileTransport()
    stack.callback(transport.close)
    transport.attach(HERE, FileSpan(file, 0, 1 << 16))
    os.truncate(path, 1 << 12)
    [status] = run(transport, Opcode.READ, memoryview(bytearray(1 << 16)))
    assert (status.state, status.code) == (SliceState.FAILED, "file_failed")
    assert str(path) in status.reason
    [status] = run(transport, Opcode.WRITE, memoryview(b"x"))
    assert status.code == "read_only"


def test_injected_faults(shared: tuple[ShmTransport, Segment]) -> None:
    inner, segment = shared
    inner.attach(HERE, segment, boot=boot_id())
    faulty = FaultyTransport(
        inner,
        Faults(
            refuse=lambda number: number == 1,
            fail=lambda number: number == 1,
            corrupt=lambda number: number == 2,
        ),
    )
    local = [memoryview(bytearray(4)) for _ in range(3)]
    statuses = run(faulty, Opcode.READ, *local)
    assert statuses == (DONE, SliceStatus(SliceState.FAILED, "injected"), DONE)
    assert [bytes(view) == b"data" for view in local] == [True, True, False]
    with pytest.raises(Busy, match="injected"):
        run(faulty, Opcode.READ, *local)
    assert run(faulty, Opcode.READ, *local) == (DONE,) * 3

"""Segments: sealed, handed over as descriptors, refused early when memory is short."""

from __future__ import annotations

import fcntl
import mmap
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from moontide.transfer import Mapping, Segment, check_memory
from moontide.transfer.errors import HandoverRefused, SegmentUnavailable
from moontide.transfer.memory import available_memory

NOBODY = 65534


@pytest.fixture
def segment() -> Iterator[Segment]:
    segment = Segment(1 << 20, name="test")
    yield segment
    segment.close()


def in_child(action: Callable[[], None]) -> int:
    """Exit status of a forked child that runs `action`: 0, or 1 when it raised."""
    pid = os.fork()
    if not pid:
        try:
            action()
        except BaseException:  # noqa: BLE001  # whatever it was, it is the child's status
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_mapping_sees_what_the_owner_writes_and_cannot_write(segment: Segment) -> None:
    mapping = Mapping(os.dup(segment.readable_descriptor), segment.num_bytes)
    segment.buffer[100:105] = b"hello"
    assert mapping.buffer[100:105] == b"hello"
    with pytest.raises(TypeError, match="read-only"):
        mapping.buffer[0] = 1


def test_writable_mapping_writes_into_the_segment(segment: Segment) -> None:
    mapping = Mapping(os.dup(segment.descriptor), segment.num_bytes, writable=True)
    mapping.buffer[7] = 42
    assert segment.buffer[7] == 42


def test_a_sparse_segment_stays_sparse_when_it_is_mapped() -> None:
    segment = Segment(64 << 20, name="sparse", reserved=False)
    segment.buffer[5] = 1

    def taken_bytes() -> int:
        return os.fstat(segment.descriptor).st_blocks * 512

    before = taken_bytes()
    mapping = Mapping(os.dup(segment.readable_descriptor), segment.num_bytes)
    assert mapping.buffer[5] == 1
    assert taken_bytes() == before < 4 << 20
    segment.close()


def test_what_is_prepared_is_written_without_faults() -> None:
    segment = Segment(8 << 20, name="prepared")
    mapping = Mapping(os.dup(segment.descriptor), segment.num_bytes, writable=True)
    for offset, num_bytes in [(5 << 20, 1 << 20), (100, 1), (0, 8 << 20), (8 << 20, 0)]:
        mapping.prepare(offset, num_bytes)
    value = b"\x01" * (8 << 20)
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    mapping.buffer[:] = value
    faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before
    assert faults < 100  # of 2048 pages
    mapping.close()
    mapping.prepare(0, 8 << 20)  # nothing is left to prepare
    segment.close()


def test_read_only_descriptor_cannot_be_mapped_writable(segment: Segment) -> None:
    with pytest.raises(PermissionError):
        Mapping(os.dup(segment.readable_descriptor), segment.num_bytes, writable=True)


def test_reopening_through_proc_for_writing_fails(segment: Segment) -> None:
    """As another user than root, of the same uid as the owner: root may always."""

    def reopen() -> None:
        os.fchown(segment.descriptor, NOBODY, NOBODY)
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        path = f"/proc/self/fd/{segment.readable_descriptor}"
        os.close(os.open(path, os.O_RDONLY))
        try:
            os.open(path, os.O_RDWR)
        except PermissionError:
            return
        raise AssertionError("reopened for writing")

    if os.geteuid() != 0:
        path = f"/proc/self/fd/{segment.readable_descriptor}"
        with pytest.raises(PermissionError):
            os.open(path, os.O_RDWR)
    else:
        assert in_child(reopen) == 0


def test_segment_can_neither_shrink_nor_grow(segment: Segment) -> None:
    for size in (4096, segment.num_bytes + 4096):
        with pytest.raises(PermissionError):
            os.ftruncate(segment.descriptor, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(segment.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_punched_pages_read_as_zeros_and_are_given_back(segment: Segment) -> None:
    segment.buffer[:] = b"x" * segment.num_bytes
    segment.punch(100, segment.num_bytes - 100)
    assert os.fstat(segment.descriptor).st_blocks * 512 == 4096
    assert bytes(segment.buffer[:4096]) == b"x" * 4096
    assert not any(segment.buffer[4096:])


def test_views_outlive_close_of_both_ends(segment: Segment) -> None:
    mapping = Mapping(os.dup(segment.readable_descriptor), segment.num_bytes)
    segment.buffer[0:4] = b"kept"
    view = mapping.buffer[0:4]
    mapping.close()
    mapping.close()
    segment.close()
    segment.close()
    assert view == b"kept"


def test_close_leaves_no_descriptor() -> None:
    before = set(os.listdir("/proc/self/fd"))
    segment = Segment(1 << 16, name="test")
    mapping = Mapping(os.dup(segment.readable_descriptor), segment.num_bytes)
    mapping.close()
    segment.close()
    assert set(os.listdir("/proc/self/fd")) == before


def test_handover_of_another_size_is_refused(segment: Segment) -> None:
    with pytest.raises(HandoverRefused, match=r"2097152 bytes was announced; 1048576"):
        Mapping(os.dup(segment.readable_descriptor), 2 << 20)


def test_handover_of_an_unsealed_memfd_is_refused() -> None:
    descriptor = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, 4096)
    with pytest.raises(HandoverRefused, match="could shrink"):
        Mapping(descriptor, 4096)


def test_handover_of_a_plain_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(4096))
    with pytest.raises(HandoverRefused, match="not a memfd"):
        Mapping(os.open(path, os.O_RDONLY), 4096)


def test_segment_of_half_a_page_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="multiple of 4096"):
        Segment(2048, name="test")


def test_r70_more_than_the_machine_has_names_asked_and_available() -> None:
    asked = available_memory().available_bytes * 2 // mmap.PAGESIZE * mmap.PAGESIZE
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(SegmentUnavailable, match=rf"{asked} bytes; \d+ are available"):
        Segment(asked, name="test")
    with pytest.raises(SegmentUnavailable, match="the pool asks for"):
        check_memory(asked, "the pool")
    assert set(os.listdir("/proc/self/fd")) == before


def test_r70_address_space_limit_is_an_error_not_a_signal() -> None:
    script = """
import resource
from moontide.transfer import Segment
from moontide.transfer.errors import SegmentUnavailable
resource.setrlimit(resource.RLIMIT_AS, (512 << 20, 512 << 20))
try:
    Segment(1 << 30, name="test")
except SegmentUnavailable as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    assert "asks for 1073741824 bytes" in done.stdout
    assert "RLIMIT_AS" in done.stdout

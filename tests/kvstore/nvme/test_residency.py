"""Pages that stay in memory. In a directory that lies on a disk: what lies in memory has no other
place to be."""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from moontide.kvstore.nvme.residency import STEP_BYTES, STEP_RATIO, ResidentFile

from .rig import MIB, Rig, names

LIBC = ctypes.CDLL(None)


def absent_pages(path: Path) -> int:
    """Pages of the file that only the disk has."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE) as mapped:
        states = (ctypes.c_ubyte * -(-len(mapped) // mmap.PAGESIZE))()
        start = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        failed = LIBC.mincore(ctypes.c_void_p(start), ctypes.c_size_t(len(mapped)), states)
    assert not failed
    return sum(not state & 1 for state in states)


def let_go(path: Path) -> None:
    """What nobody has mapped leaves the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="moontide-pages-") as directory:
        yield Path(directory)


@pytest.fixture
def file(directory: Path) -> Path:
    path = directory / "file"
    path.write_bytes(os.urandom(2 * STEP_BYTES))
    let_go(path)
    assert absent_pages(path)
    return path


def test_pages_are_brought_and_stay(file: Path) -> None:
    resident = ResidentFile(file)
    resident.keep()
    assert absent_pages(file) == 0
    let_go(file)
    assert absent_pages(file) == 0
    resident.close()
    let_go(file)
    assert absent_pages(file)


def test_pages_that_are_added_stay_too(file: Path) -> None:
    resident = ResidentFile(file)
    resident.keep()
    with file.open("ab") as more:
        more.write(os.urandom(STEP_BYTES))
    resident.keep()
    let_go(file)
    assert absent_pages(file) == 0
    resident.close()


def test_a_file_that_grows_by_little_is_kept_with_few_descriptors(directory: Path) -> None:
    path, most = directory / "growing", 64
    path.write_bytes(bytes(STEP_BYTES))
    resident = ResidentFile(path)
    before = num_descriptors()
    for steps in range(1, most + 1):
        os.truncate(path, steps * STEP_BYTES)
        resident.keep()
        assert absent_pages(path) * mmap.PAGESIZE < max(1, STEP_RATIO * steps) * STEP_BYTES
    assert num_descriptors() - before < most / 2
    resident.close()


def num_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_looking_up_what_was_written_by_an_earlier_process_needs_no_disk(directory: Path) -> None:
    def open_rig() -> Rig:
        return Rig(directory / "nvme", capacity_bytes=64 * MIB, region_bytes=8 * MIB)

    index = directory / "nvme/index/data.mdb"
    rig = open_rig()
    rig.put_many(names(0, 1000))
    rig.close()
    let_go(index)
    assert absent_pages(index)
    rig = open_rig()
    let_go(index)
    assert absent_pages(index) == 0
    rig.close()

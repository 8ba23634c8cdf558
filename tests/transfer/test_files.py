"""Files past the page cache: alignment, fallback, typed errors."""

from __future__ import annotations

import errno
import os
import random
import resource
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from moontide.transfer.errors import FileFailed
from moontide.transfer.files import (
    DirectFile,
    FileAccess,
    aligned_buffer,
    is_aligned,
    sync_directory,
)

PAGE = 4096


@pytest.fixture(params=["direct", "buffered"])
def new_file(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DirectFile]:
    with closing(DirectFile(tmp_path / "file", FileAccess.CREATE)) as file:
        if request.param == "buffered":
            file.is_direct = False
        elif not file.is_direct:
            pytest.skip("this file system has no O_DIRECT")
        yield file


def random_buffer(num_bytes: int) -> memoryview:
    buffer = aligned_buffer(num_bytes)[:num_bytes]
    buffer[:] = random.Random(num_bytes).randbytes(num_bytes)
    return buffer


def test_aligned_buffers_are_whole_zeroed_pages() -> None:
    buffer = aligned_buffer(PAGE + 1)
    assert len(buffer) == 2 * PAGE
    assert is_aligned(buffer)
    assert bytes(buffer) == bytes(2 * PAGE)
    assert not is_aligned(buffer[64:])
    assert not is_aligned(buffer[64 : 64 + PAGE])


def test_what_was_written_is_read(new_file: DirectFile) -> None:
    data = random_buffer(8 * PAGE)
    new_file.reserve(16 * PAGE)
    new_file.write_from([data[: 2 * PAGE], data[2 * PAGE :]], 4 * PAGE)
    new_file.sync()
    assert new_file.size() == 16 * PAGE
    back = aligned_buffer(8 * PAGE)
    new_file.read_into([back[: 6 * PAGE], back[6 * PAGE :]], 4 * PAGE)
    assert back == data
    assert new_file.path.read_bytes()[4 * PAGE : 12 * PAGE] == bytes(data)


@pytest.mark.parametrize(("offset", "length", "shift"), [(1, PAGE, 0), (0, 100, 0), (0, PAGE, 64)])
def test_unaligned_requests_work_too(
    new_file: DirectFile, offset: int, length: int, shift: int
) -> None:
    data = random_buffer(4 * PAGE)
    new_file.write_from([data], 0)
    back = aligned_buffer(2 * PAGE)[shift : shift + length]
    new_file.read_into([back], offset)
    assert back == data[offset : offset + length]
    new_file.write_from([back], 2 * PAGE + 1)
    whole = aligned_buffer(4 * PAGE)
    new_file.read_into([whole], 0)
    assert whole[: 2 * PAGE + 1] == data[: 2 * PAGE + 1]
    assert whole[2 * PAGE + 1 : 2 * PAGE + 1 + length] == back


def test_more_buffers_than_a_system_call_takes(new_file: DirectFile) -> None:
    data = random_buffer(1500 * 64)
    new_file.write_from([data], 0)
    back = aligned_buffer(len(data))[: len(data)]
    new_file.read_into([back[i : i + 64] for i in range(0, len(data), 64)], 0)
    assert back == data


def test_file_that_ends_early_is_an_error(new_file: DirectFile) -> None:
    new_file.write_from([random_buffer(2 * PAGE)], 0)
    new_file.truncate(PAGE + 100)
    with pytest.raises(FileFailed, match="the file ends before") as caught:
        new_file.read_into([aligned_buffer(2 * PAGE)], 0)
    assert caught.value.errno == errno.EIO


def test_errors_carry_errno_and_path(tmp_path: Path) -> None:
    with pytest.raises(FileFailed, match=f"open {tmp_path}/none") as caught:
        DirectFile(tmp_path / "none", FileAccess.READ)
    assert caught.value.errno == errno.ENOENT
    (tmp_path / "there").touch()
    with pytest.raises(FileFailed) as caught:
        DirectFile(tmp_path / "there", FileAccess.CREATE)
    assert caught.value.errno == errno.EEXIST
    with pytest.raises(FileFailed) as caught:
        sync_directory(tmp_path / "none")
    assert caught.value.errno == errno.ENOENT


def test_read_only_file_refuses_writes(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(PAGE))
    with (
        closing(DirectFile(tmp_path / "file", FileAccess.READ)) as file,
        pytest.raises(FileFailed) as caught,
    ):
        file.write_from([aligned_buffer(PAGE)], 0)
    assert caught.value.errno == errno.EBADF


def test_descriptors_end_with_close(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    file = DirectFile(tmp_path / "file", FileAccess.CREATE)
    file.close()
    file.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_reserve_past_the_file_size_limit(tmp_path: Path) -> None:
    file = DirectFile(tmp_path / "file", FileAccess.CREATE)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(FileFailed, match="reserve 2097152 bytes") as caught:
            file.reserve(2 << 20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        file.close()
    assert caught.value.errno == errno.EFBIG

"""Copies of every size and phase, checksummed over what arrived."""

from __future__ import annotations

import mmap
import random
import sys
import threading
import time

import pytest
from xxhash import xxh3_64_intdigest

from moontide.transfer import checksum, copy, copy_and_checksum
from moontide.transfer.copying import CHUNK_BYTES, SMALL_BYTES, UNLOCKED_BYTES

SIZES = [0, 1, 63, 4096]
SIZES += [edge + step for edge in (SMALL_BYTES, UNLOCKED_BYTES, CHUNK_BYTES) for step in (-1, 0, 1)]
SIZES += [3 * CHUNK_BYTES + 17]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("phase", [0, 1, 16, 63, 64, 4095])
def test_copy_moves_exactly_the_bytes(size: int, phase: int) -> None:
    source = random.Random(size).randbytes(size)
    page = memoryview(mmap.mmap(-1, size + 3 * 4096))
    page[:] = b"\xaa" * len(page)
    target = page[phase : phase + size]
    assert copy_and_checksum(target, source) == xxh3_64_intdigest(source)
    assert target == source
    assert page[phase + size] == 0xAA
    assert phase == 0 or page[phase - 1] == 0xAA
    target[:] = bytes(size)
    copy(target, source)
    assert target == source


def test_copies_between_shifted_pages() -> None:
    """The phase that memmove is slow at on some machines takes another path."""
    source = memoryview(mmap.mmap(-1, 1 << 20))
    target = memoryview(mmap.mmap(-1, 1 << 20))
    source[:] = random.Random(1).randbytes(1 << 20)
    copy(target[16 : 16 + (200 << 10)], source[: 200 << 10])
    assert target[16 : 16 + (200 << 10)] == source[: 200 << 10]


@pytest.mark.parametrize("function", [copy, copy_and_checksum])
def test_sizes_must_be_equal(function: object) -> None:
    with pytest.raises(ValueError, match="copy of 3 bytes into 4"):
        function(memoryview(bytearray(4)), b"abc")  # type: ignore[operator]  # either of two


def test_views_of_other_formats_are_copied_as_bytes() -> None:
    target = memoryview(bytearray(16))
    copy(target.cast("Q"), memoryview(bytes(range(16))).cast("I"))
    assert target == bytes(range(16))


def test_checksum_is_the_published_xxh3() -> None:
    assert checksum(b"") == 0x2D06800538D394C2
    assert checksum(b"moontide") == xxh3_64_intdigest(b"moontide")


def test_large_copies_release_the_interpreter() -> None:
    """While a thread copies and sums, this one goes on counting, though no thread is made to give
    way."""
    source, target = bytes(64 << 20), memoryview(bytearray(64 << 20))
    started = threading.Event()

    def work() -> None:
        started.set()
        copy_and_checksum(target, source)

    before = sys.getswitchinterval()
    sys.setswitchinterval(60.0)
    try:
        thread = threading.Thread(target=work)
        thread.start()
        started.wait()
        steps = 0
        while thread.is_alive():
            steps += 1
            time.sleep(0)
        thread.join()
    finally:
        sys.setswitchinterval(before)
    assert steps > 20

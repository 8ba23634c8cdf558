"""Copies of every size and phase, with their checksums; by Python alone, and with copying.c."""

from __future__ import annotations

import ctypes
import mmap
import random
import runpy
import sys
import threading
import time
from pathlib import Path

import pytest
from xxhash import xxh3_64_intdigest

from moontide.transfer import checksum
from moontide.transfer.copying import CHUNK_BYTES, SMALL_BYTES, Copying
from moontide.transfer.native import CopyPastCaches, load

ROOT = Path(__file__).parents[2]
SIZES = [0, 1, 63, 4096]
SIZES += [edge + step for edge in (SMALL_BYTES, CHUNK_BYTES) for step in (-1, 0, 1)]
SIZES += [CHUNK_BYTES + 63, 3 * CHUNK_BYTES + 17]


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> CopyPastCaches:
    """Built from the source beside this test, not what an earlier install has left."""
    library = tmp_path_factory.mktemp("native") / "_copying.so"
    build = runpy.run_path(str(ROOT / "hatch_build.py"))["build"]
    failure = build(ROOT / "transfer" / "copying.c", library)
    if failure:
        pytest.skip(f"copying.c is not built: {failure}")
    copy_past_caches = load(library)
    assert copy_past_caches is not None
    return copy_past_caches


@pytest.fixture(params=["python", "native"])
def copying(request: pytest.FixtureRequest) -> Copying:
    return Copying(request.getfixturevalue("native") if request.param == "native" else None)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("phase", [0, 1, 16, 63, 64, 4095])
def test_copy_moves_exactly_the_bytes(copying: Copying, size: int, phase: int) -> None:
    source = random.Random(size).randbytes(size)
    page = memoryview(mmap.mmap(-1, size + 3 * 4096))
    page[:] = b"\xaa" * len(page)
    target = page[phase : phase + size]
    assert copying.copy_and_checksum(target, source) == xxh3_64_intdigest(source)
    assert target == source
    assert page[phase + size] == 0xAA
    assert phase == 0 or page[phase - 1] == 0xAA
    target[:] = bytes(size)
    copying.copy(target, source)
    assert target == source
    assert page[phase + size] == 0xAA


def test_a_copy_past_the_caches_fits_every_alignment(native: CopyPastCaches) -> None:
    """It does what `Copying` asks of it for large values alone."""
    source = random.Random(1).randbytes(512)
    origin, target = ctypes.create_string_buffer(source, 512), ctypes.create_string_buffer(512)
    to, came_from = ctypes.addressof(target), ctypes.addressof(origin)
    for start in range(65):
        for size in (0, 1, 63, 64, 65, 127, 128, 200, 512 - 64):
            ctypes.memset(target, 0xAA, 512)
            native(to + start, came_from + 64 - start, size)
            expected = source[64 - start : 64 - start + size]
            assert target.raw == b"\xaa" * start + expected + b"\xaa" * (512 - start - size)


def test_where_it_was_not_built_there_are_no_native_copies(tmp_path: Path) -> None:
    assert load(tmp_path / "_copying.so") is None


def test_what_is_read_only_stays_as_it_is(copying: Copying) -> None:
    for size in SIZES:
        target = bytes(size)
        with pytest.raises((ValueError, TypeError)):
            copying.copy_and_checksum(memoryview(target), b"\x01" * size)
        assert target == bytes(size)


def test_sizes_must_be_equal(copying: Copying) -> None:
    with pytest.raises(ValueError, match="copy of 3 bytes into 4"):
        copying.copy(memoryview(bytearray(4)), b"abc")
    with pytest.raises(ValueError, match="copy of 3 bytes into 4"):
        copying.copy_and_checksum(memoryview(bytearray(4)), b"abc")


def test_views_of_other_formats_are_copied_as_bytes(copying: Copying) -> None:
    target = memoryview(bytearray(16))
    copying.copy(target.cast("Q"), memoryview(bytes(range(16))).cast("I"))
    assert target == bytes(range(16))


def test_checksum_is_the_published_xxh3() -> None:
    assert checksum(b"") == 0x2D06800538D394C2
    assert checksum(b"moontide") == xxh3_64_intdigest(b"moontide")


def test_large_copies_release_the_interpreter(copying: Copying) -> None:
    """While a thread copies and sums, this one goes on counting, though no thread is made to give
    way."""
    source, target = bytes(64 << 20), memoryview(bytearray(64 << 20))
    started, seen = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        for _ in range(100):
            if not seen.is_set():
                copying.copy_and_checksum(target, source)

    before = sys.getswitchinterval()
    sys.setswitchinterval(60.0)
    try:
        thread = threading.Thread(target=work)
        thread.start()
        started.wait()
        steps = 0
        while thread.is_alive() and steps <= 20:
            steps += 1
            time.sleep(0)
        seen.set()
        thread.join()
    finally:
        sys.setswitchinterval(before)
    assert steps > 20

"""Copies of every size and phase, checksummed over what arrived; by Python alone, and by
copying.c."""

from __future__ import annotations

import importlib.util
import mmap
import random
import runpy
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import cast

import pytest
from xxhash import xxh3_64_intdigest

from moontide.transfer import checksum
from moontide.transfer.copying import (
    CHUNK_BYTES,
    SMALL_BYTES,
    UNLOCKED_BYTES,
    Copying,
)
from moontide.transfer.native import LEAST_SUMMED_BYTES, NativeCopies, load

ROOT = Path(__file__).parents[2]
PAST_CACHES_BYTES = 256 << 10
"""As in copying.c."""
EDGES = (SMALL_BYTES, UNLOCKED_BYTES, PAST_CACHES_BYTES, CHUNK_BYTES)
SIZES = [0, 1, 63, 4096]
SIZES += [edge + step for edge in EDGES for step in (-1, 0, 1)]
SIZES += [3 * CHUNK_BYTES + 17]
KERNEL_SIZES = [PAST_CACHES_BYTES + more for more in (0, 1, 63, 64, 1023)]
KERNEL_SIZES += [241, 255, 256, 257, 319, 320, 321, 1023, 1024, 1025, 1088, 1089, 2048, 2049, 99999]


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> NativeCopies:
    """Built from the source beside this test, not what an earlier install has left."""
    library = tmp_path_factory.mktemp("native") / "_copying.abi3.so"
    build = runpy.run_path(str(ROOT / "hatch_build.py"))["build"]
    failure = build(ROOT / "transfer" / "copying.c", library)
    if failure:
        pytest.skip(f"copying.c is not built: {failure}")
    spec = importlib.util.spec_from_file_location("_copying", library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not module.is_supported():
        pytest.skip("this processor has no AVX2")
    return cast(NativeCopies, module)


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


@pytest.mark.parametrize("size", KERNEL_SIZES)
@pytest.mark.parametrize("phase", [0, 1, 16, 32, 48])
def test_one_pass_sums_as_xxhash_does(native: NativeCopies, size: int, phase: int) -> None:
    """Every remainder of a block and of a stripe, every kind of store."""
    assert size >= LEAST_SUMMED_BYTES
    source = memoryview(random.Random(size).randbytes(size + 7))
    page = memoryview(mmap.mmap(-1, size + 4096))
    for start in (0, 7):
        page[:] = b"\xaa" * len(page)
        target, origin = page[phase : phase + size], source[start : start + size]
        assert native.copy_and_checksum(target, origin) == xxh3_64_intdigest(origin)
        assert target == origin
        assert page[phase + size] == 0xAA
        target[:] = bytes(size)
        native.copy(target, origin)
        assert target == origin
        assert page[phase + size] == 0xAA


def test_too_few_bytes_for_its_formula_are_refused(native: NativeCopies) -> None:
    with pytest.raises(ValueError, match="240 bytes; at least 241"):
        native.copy_and_checksum(memoryview(bytearray(240)), bytes(240))


def test_where_it_was_not_built_there_are_no_native_copies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "moontide.transfer._copying", None)
    assert load() is None


def test_the_store_is_imported_and_copies_where_it_was_not_built() -> None:
    script = """
import sys
sys.modules["moontide.transfer._copying"] = None
import moontide.kvstore
from moontide.transfer import checksum, copy_and_checksum
target = bytearray(1 << 20)
assert copy_and_checksum(memoryview(target), b"ab" * (1 << 19)) == checksum(target)
assert target == b"ab" * (1 << 19)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_what_is_read_only_stays_as_it_is(copying: Copying) -> None:
    for size in SIZES:
        target = bytes(size)
        with pytest.raises((ValueError, TypeError)):
            copying.copy_and_checksum(memoryview(target), b"\x01" * size)
        assert target == bytes(size)


def test_copies_between_shifted_pages(copying: Copying) -> None:
    """The phase that memmove is slow at on some machines takes another path."""
    source = memoryview(mmap.mmap(-1, 1 << 20))
    target = memoryview(mmap.mmap(-1, 1 << 20))
    source[:] = random.Random(1).randbytes(1 << 20)
    copying.copy(target[16 : 16 + (200 << 10)], source[: 200 << 10])
    assert target[16 : 16 + (200 << 10)] == source[: 200 << 10]


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

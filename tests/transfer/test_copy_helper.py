"""Two threads copy what one would: the same bytes, the same checksums, the same errors."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import pytest
from xxhash import xxh3_64_intdigest

from moontide.transfer import CopyHelper
from moontide.transfer.copy_helper import LEAST_BATCH_BYTES, LEAST_VALUE_BYTES

SIZES = [
    0,
    4096,
    LEAST_VALUE_BYTES - 1,
    LEAST_VALUE_BYTES,
    5 * LEAST_VALUE_BYTES + 17,
]


@pytest.fixture
def helper() -> Iterator[CopyHelper]:
    helper = CopyHelper(is_worthwhile=lambda: True)
    yield helper
    helper.close()


def random_bytes(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("phase", [0, 16])
def test_a_value_is_copied_and_summed_whole(helper: CopyHelper, size: int, phase: int) -> None:
    source = random_bytes(size)
    room = bytearray(phase + size + 1)
    target = memoryview(room)[phase : phase + size]
    for _ in range(3):
        room[:] = b"\xaa" * len(room)
        assert helper.copy_and_checksum(target, source) == xxh3_64_intdigest(source)
        assert target == source
        assert room[-1] == 0xAA
        target[:] = bytes(size)
        helper.copy(target, source)
        assert target == source


@pytest.mark.parametrize("num_bytes", [0, LEAST_BATCH_BYTES])
@pytest.mark.parametrize("count", [0, 1, 2, 100])
def test_every_index_is_acted_on_once(helper: CopyHelper, num_bytes: int, count: int) -> None:
    acted: list[int] = []
    helper.share(acted.append, count, num_bytes)
    assert sorted(acted) == list(range(count))


def test_what_an_act_raises_first_is_raised_when_all_have_ended(helper: CopyHelper) -> None:
    running = threading.Semaphore(0)

    def act(index: int) -> None:
        if index == 3:
            raise ValueError("three")
        running.release()

    with pytest.raises(ValueError, match="three"):
        helper.share(act, 1000, LEAST_BATCH_BYTES)
    helper.share(lambda index: running.release(), 10, LEAST_BATCH_BYTES)  # goes on serving


def test_others_copy_alone_while_it_serves_one(helper: CopyHelper) -> None:
    """From within a shared batch, and by many threads at once."""
    values = [random_bytes(LEAST_VALUE_BYTES + 1, seed) for seed in range(6)]
    copies = [bytearray(len(value)) for value in values]
    sums = [0] * len(values)

    def act(index: int) -> None:
        sums[index] = helper.copy_and_checksum(memoryview(copies[index]), values[index])

    threads = [
        threading.Thread(target=helper.share, args=(act, len(values), LEAST_BATCH_BYTES))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert copies == values
    assert sums == [xxh3_64_intdigest(value) for value in values]


def test_after_close_callers_copy_alone() -> None:
    helper = CopyHelper(is_worthwhile=lambda: True)
    source = random_bytes(LEAST_VALUE_BYTES)
    target = bytearray(len(source))
    assert helper.copy_and_checksum(memoryview(target), source) == xxh3_64_intdigest(source)
    helper.close()
    helper.close()
    before = threading.active_count()
    assert helper.copy_and_checksum(memoryview(target), source) == xxh3_64_intdigest(source)
    acted: list[int] = []
    helper.share(acted.append, 5, LEAST_BATCH_BYTES)
    assert acted == [0, 1, 2, 3, 4]
    assert threading.active_count() == before


def test_on_a_busy_machine_the_caller_copies_alone() -> None:
    helper = CopyHelper(is_worthwhile=lambda: False)
    before = threading.active_count()
    source = random_bytes(LEAST_VALUE_BYTES)
    target = bytearray(len(source))
    assert helper.copy_and_checksum(memoryview(target), source) == xxh3_64_intdigest(source)
    assert target == source
    threads: set[int] = set()
    helper.share(lambda index: threads.add(threading.get_ident()), 9, LEAST_BATCH_BYTES)
    assert threads == {threading.get_ident()}
    assert threading.active_count() == before
    helper.close()


def test_sizes_must_be_equal(helper: CopyHelper) -> None:
    with pytest.raises(ValueError, match="copy of 5 bytes into"):
        helper.copy_and_checksum(memoryview(bytearray(LEAST_VALUE_BYTES)), b"short")
    target, source = bytearray(LEAST_VALUE_BYTES), random_bytes(LEAST_VALUE_BYTES)
    assert helper.copy_and_checksum(memoryview(target), source) == xxh3_64_intdigest(source)

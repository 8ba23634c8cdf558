"""What a disk that fails for a while, or for good, leaves behind. That each step fails, or ends the
process, once: tests/fault."""

from __future__ import annotations

import itertools
import random
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from moontide.kvstore.nvme.staging import WRITE_BYTES
from moontide.transfer import aligned_buffer

from .faults import Countdown, FaultyStorage, disk_error, disk_full
from .rig import MIB, Rig, names

KIB = 1 << 10
SMALL = {"capacity_bytes": 2 * 1024 * KIB + 5 * 64 * KIB, "region_bytes": 64 * KIB}


def open_rig(directory: Path, storage: FaultyStorage | None = None) -> Rig:
    return Rig(directory, storage=storage, **SMALL)  # type: ignore[arg-type]  # sizes


def test_disk_that_stays_broken_fails_every_write_and_reads_go_on(tmp_path: Path) -> None:
    def broken(point: str) -> None:
        if point != "read":
            disk_error(point)

    storage = FaultyStorage(broken)
    rig = open_rig(tmp_path / "nvme", storage)
    assert rig.put(b"k1")
    storage.armed = True
    assert rig.put_many(names(0, 20)) == [False] * 20
    assert not rig.drop(b"k1")
    assert rig.tier.locate([b"k1"]) == [None]  # for as long as the process lives
    assert not rig.clear(None)
    assert rig.tier.stats().disk_errors >= 3
    storage.armed = False
    assert rig.put(b"k2")
    assert rig.hits([b"k2"]) == [b"k2"]
    rig.close()


@pytest.mark.parametrize("point", ["write", "sync", "index"])
def test_what_failed_on_its_way_in_is_gone_once_dropped(tmp_path: Path, point: str) -> None:
    """The log may have it though the index has not."""
    storage = FaultyStorage(lambda at: disk_full(at) if at == point else None)
    rig = open_rig(tmp_path / "nvme", storage)
    assert rig.put(b"before")
    storage.armed = True
    assert not rig.put(b"k1", namespace="")
    storage.armed = False
    assert rig.tier.locate([b"k1"]) == [None]
    assert rig.tier.may_return([b"before", b"k1", b"absent"]) == [True, True, False]
    assert rig.drop(b"k1")
    assert rig.tier.may_return([b"k1"]) == [False]
    rig.close()
    rig = open_rig(tmp_path / "nvme")
    assert rig.tier.locate([b"k1"]) == [None]
    assert rig.hits([b"before"]) == [b"before"]
    rig.close()


def test_a_removal_that_failed_is_made_durable_when_repeated(tmp_path: Path) -> None:
    storage = FaultyStorage(disk_error)
    rig = open_rig(tmp_path / "nvme", storage)
    assert rig.put(b"k1")
    storage.armed = True
    assert not rig.drop(b"k1")
    storage.armed = False
    assert rig.tier.locate([b"k1"]) == [None]
    assert rig.tier.may_return([b"k1"]) == [True]
    assert rig.drop(b"k1")
    assert rig.tier.may_return([b"k1"]) == [False]
    rig.close()
    rig = open_rig(tmp_path / "nvme")
    assert rig.tier.locate([b"k1"]) == [None]
    rig.close()


def test_read_error_drops_the_entry(tmp_path: Path) -> None:
    def unreadable(point: str) -> None:
        if point == "read":
            disk_error(point)

    storage = FaultyStorage(unreadable)
    rig = open_rig(tmp_path / "nvme", storage)
    rig.put(b"k1")
    storage.armed = True
    assert rig.get(b"k1") == [None] * 3
    rig.wait(lambda: rig.removed)
    storage.armed = False
    assert rig.tier.locate([b"k1"]) == [None]
    assert rig.tier.stats().disk_errors > 0
    rig.close()


@pytest.mark.parametrize("number", [1, 2, 3])
def test_each_of_two_writes_at_a_time_that_fails_fails_its_entry(
    tmp_path: Path, number: int
) -> None:
    """24 MiB go to disk in three writes, of which two threads do one after the other by turns."""
    value = random_value(3 * WRITE_BYTES, number)
    countdown = Countdown(number, disk_error)
    storage = FaultyStorage(lambda point: countdown(point) if point == "write" else None)
    rig = Rig(tmp_path, storage=storage, capacity_bytes=320 * MIB, region_bytes=64 * MIB)
    assert rig.put(b"before")
    storage.armed = True
    assert not rig.put(b"k", [value])
    assert len(countdown.points) >= number
    assert rig.tier.locate([b"k"]) == [None]
    assert rig.put(b"k", [value])
    assert rig.get(b"k") == [bytes(value)]
    assert rig.hits([b"before"]) == [b"before"]
    rig.close()


@pytest.mark.parametrize("number", range(1, 10))
def test_a_write_that_fails_while_later_ones_are_put_fails_no_more_than_was_on_its_way(
    tmp_path: Path, number: int
) -> None:
    value = random_value(2 * WRITE_BYTES, number)
    countdown = Countdown(number, disk_error)
    storage = FaultyStorage(lambda point: countdown(point) if point == "write" else None)
    rig = Rig(tmp_path, storage=storage, capacity_bytes=640 * MIB, region_bytes=128 * MIB)
    storage.armed = True
    outcomes: dict[bytes, bool] = {}
    entries = names(0, 6)
    for entry in entries:
        assert rig.submit(entry, [value], partial(outcomes.__setitem__, entry))
    rig.hurry()
    rig.wait(lambda: len(outcomes) == len(entries))
    stored = [entry for entry in entries if outcomes[entry]]
    assert len(stored) < len(entries)
    assert rig.put(b"later")
    assert rig.get_many(entries) == [
        [bytes(value)] if entry in stored else None for entry in entries
    ]
    rig.close()
    rig = Rig(tmp_path, capacity_bytes=640 * MIB, region_bytes=128 * MIB)
    assert rig.listed() == {*stored, b"later"}
    rig.close()


HELD_SECONDS = 0.2
GIVE_UP_SECONDS = 20.0


def test_a_batch_that_fails_with_the_one_before_it_is_told_once_nothing_of_it_is_being_written(
    tmp_path: Path,
) -> None:
    """Its bytes may be used for something else then. Two threads write by turns: the first has
    still to do with the batch before."""
    writes, fail, go_on = itertools.count(1), threading.Event(), threading.Event()
    held = threading.Event()

    def at(point: str) -> None:
        number = next(writes) if point == "write" else 0
        if number == 1:
            fail.wait(GIVE_UP_SECONDS)
            disk_error(point)
        elif number == 3:
            held.set()
            go_on.wait(GIVE_UP_SECONDS)

    storage = FaultyStorage(at)
    rig = Rig(tmp_path, storage=storage, capacity_bytes=640 * MIB, region_bytes=128 * MIB)
    assert rig.put(b"first")  # there is a region
    storage.armed = True
    outcomes: dict[bytes, bool] = {}
    for entry in (b"before", b"after"):
        submit_alone(rig, entry, [random_value(2 * WRITE_BYTES, entry)], outcomes)
    rig.wait(held.is_set)
    time.sleep(HELD_SECONDS)  # until it is all handed over
    fail.set()
    rig.wait(lambda: b"before" in outcomes)
    check_untold(rig, outcomes, b"after")
    go_on.set()
    rig.wait(lambda: b"after" in outcomes)
    assert not outcomes[b"before"]
    rig.close()


def test_a_batch_that_comes_to_a_failed_one_is_stored_anew_once_nothing_of_it_is_being_written(
    tmp_path: Path,
) -> None:
    """The one before it fails while the end of this one is written."""
    is_told, go_on, held, at_end = (threading.Event() for _ in range(4))

    def at(point: str) -> None:
        thread = threading.current_thread().name
        if point != "write" or go_on.is_set():
            return
        if thread == "nvme-writer-1":
            at_end.wait(GIVE_UP_SECONDS)
            disk_error(point)
        elif thread == "nvme-writer-2":
            held.set()
            go_on.wait(GIVE_UP_SECONDS)
        elif thread == "nvme-writer":
            held.wait(GIVE_UP_SECONDS)
            at_end.set()
            is_told.wait(GIVE_UP_SECONDS)

    storage = FaultyStorage(at)
    rig = Rig(tmp_path, storage=storage, capacity_bytes=320 * MIB, region_bytes=64 * MIB)
    assert rig.put(b"first")  # there is a region
    storage.armed = True
    outcomes: dict[bytes, bool] = {}
    for entry, end in ((b"before", ()), (b"after", (memoryview(b"end" * 100),))):
        submit_alone(rig, entry, [random_value(WRITE_BYTES, entry), *end], outcomes)
    rig.wait(lambda: b"before" in outcomes)
    is_told.set()
    check_untold(rig, outcomes, b"after")
    go_on.set()
    rig.wait(lambda: b"after" in outcomes)
    assert outcomes == {b"before": False, b"after": True}
    rig.close()


def test_an_entry_whose_end_cannot_be_written_is_told_once_its_beginning_is_not_being_written(
    tmp_path: Path,
) -> None:
    go_on, held = threading.Event(), threading.Event()

    def at(point: str) -> None:
        if point == "write" and threading.current_thread().name.startswith("nvme-writer-"):
            held.set()
            go_on.wait(GIVE_UP_SECONDS)
        elif point == "write":
            disk_error(point)

    storage = FaultyStorage(at)
    rig = Rig(tmp_path, storage=storage, capacity_bytes=320 * MIB, region_bytes=64 * MIB)
    assert rig.put(b"first")  # there is a region
    storage.armed = True
    outcomes: dict[bytes, bool] = {}
    submit_alone(rig, b"k", [random_value(WRITE_BYTES, 1), memoryview(b"end" * 100)], outcomes)
    rig.wait(held.is_set)
    check_untold(rig, outcomes, b"k")
    go_on.set()
    rig.wait(lambda: b"k" in outcomes)
    assert not outcomes[b"k"]
    rig.close()


def check_untold(rig: Rig, outcomes: dict[bytes, bool], entry: bytes) -> None:
    end = time.monotonic() + HELD_SECONDS
    rig.wait(lambda: entry in outcomes or time.monotonic() > end)
    assert entry not in outcomes


def random_value(num_bytes: int, seed: int | bytes) -> memoryview:
    value = aligned_buffer(num_bytes)
    value[:] = random.Random(seed).randbytes(num_bytes)
    return value


def submit_alone(
    rig: Rig, entry: bytes, parts: list[memoryview], outcomes: dict[bytes, bool]
) -> None:
    """In a batch of its own."""
    assert rig.submit(entry, parts, partial(outcomes.__setitem__, entry))
    rig.wait(lambda: rig.tier.stats().pending_writes == 0)

"""Every change of the disk fails once, or ends the process: what was reported stored is there, old
or new, never mixed, and the tier goes on."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from .faults import Countdown, Fault, FaultyStorage, disk_error, disk_full, kill
from .rig import Rig, names

KIB = 1 << 10
SMALL = {"capacity_bytes": 2 * 1024 * KIB + 5 * 64 * KIB, "region_bytes": 64 * KIB}
VERSIONS = range(1, 4)
DROPPED = names(3, 5)
NEED_SPACE = {"create", "reserve", "write", "index"}
Report = Callable[[str], None]


def open_rig(directory: Path, storage: FaultyStorage | None = None) -> Rig:
    return Rig(directory, storage=storage, **SMALL)  # type: ignore[arg-type]  # sizes


def value(version: int) -> list[memoryview]:
    return [memoryview(bytes([version]) * 5000), memoryview(bytes([version]) * 4096)]


def scenario(rig: Rig, report: Report) -> None:
    """Writes, replaces, drops, clears, over several regions; reports what was promised."""
    for version in VERSIONS:
        if rig.put(b"s1", value(version), namespace=""):
            report(f"s1 {version}")
        entries = names(3 * version, 3 * version + 3)
        for entry, is_stored in zip(entries, rig.put_many(entries), strict=True):
            if is_stored:
                report(f"put {entry.decode()}")
    if rig.drop(*DROPPED):
        report("dropped")
    if rig.put(b"x", namespace="cd" * 32) and rig.clear("cd" * 32):
        report("cleared")


def check(directory: Path, told: list[str]) -> None:
    """What the reports promise, in a tier opened anew."""
    rig = open_rig(directory)
    last = max((int(line.split()[1]) for line in told if line.startswith("s1 ")), default=0)
    allowed = [[bytes(part) for part in value(version)] for version in range(last, 4) if version]
    assert rig.get(b"s1") in (allowed if last else [None, *allowed])
    put = {line.split()[1].encode() for line in told if line.startswith("put ")}
    there = set(rig.hits(names(3, 12)))
    assert put - set(DROPPED) <= there
    if "dropped" in told:
        assert not there & set(DROPPED)
    if "cleared" in told:
        assert rig.tier.locate([b"x"]) == [None]
    assert rig.put(b"afterwards")
    rig.close()


def count_points(directory: Path) -> list[str]:
    countdown = Countdown(0, kill)
    storage = FaultyStorage(countdown)
    rig = open_rig(directory, storage)
    storage.armed = True
    scenario(rig, lambda _: None)
    rig.close()
    shutil.rmtree(directory)
    return countdown.points


def fail_at(directory: Path, number: int, fault: Fault) -> list[str]:
    """What the scenario reports when its n-th change fails."""
    storage = FaultyStorage(Countdown(number, fault))
    rig = open_rig(directory, storage)
    storage.armed = True
    told: list[str] = []
    scenario(rig, told.append)
    rig.close()
    return told


def test_each_io_error_fails_its_operation_and_no_other(tmp_path: Path) -> None:
    points = count_points(tmp_path / "count")
    assert {"create", "reserve", "write", "sync", "rename", "truncate", "index"} <= set(points)
    for number, point in enumerate(points, 1):
        told = fail_at(tmp_path / str(number), number, disk_error)
        assert len(told) >= 10, (number, point)
        check(tmp_path / str(number), told)


def test_full_disk_makes_room_or_fails_the_operation(tmp_path: Path) -> None:
    points = count_points(tmp_path / "count")
    for number, point in enumerate(points, 1):
        if point in NEED_SPACE:
            fail_at(tmp_path / str(number), number, disk_full)
            rig = open_rig(tmp_path / str(number))
            assert set(rig.hits(names(3, 12))) <= rig.listed()
            assert rig.put(b"afterwards")
            rig.close()


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


def run_child(directory: Path, number: int) -> tuple[list[str], bool]:
    """The scenario in a process that ends itself at the n-th change; its reports, and whether it
    was killed."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            storage = FaultyStorage(Countdown(number, kill))
            rig = open_rig(directory, storage)
            storage.armed = True
            scenario(rig, lambda line: os.write(writer, f"{line}\n".encode()) and None)
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        told = pipe.read().splitlines()
    _, status = os.waitpid(pid, 0)
    return told, os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def test_r44_kill_at_each_change_leaves_what_was_promised(tmp_path: Path) -> None:
    points = count_points(tmp_path / "count")
    for number, point in enumerate(points, 1):
        directory = tmp_path / str(number)
        told, was_killed = run_child(directory, number)
        assert was_killed, (number, point)
        check(directory, told)

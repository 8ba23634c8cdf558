"""Steps of the NVMe tier in which something goes wrong, and what must hold afterwards."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from ..kvstore.nvme.faults import Countdown, FaultyStorage, disk_error, kill
from ..kvstore.nvme.rig import Rig, disk_bytes, names, region_files

KIB = 1 << 10
REGION_BYTES = 64 * KIB
NUM_REGIONS = 6
CAPACITY_BYTES = 2048 * KIB + NUM_REGIONS * REGION_BYTES
ENTRY_BYTES = 13 * KIB
"""What an entry of the rig takes in a region, about."""
OLD = tuple(names(0, 12, prefix="old"))
HOT = OLD[:2]
NEW = tuple(names(0, 6, prefix="new"))
OTHER = b"other"
"""Of another namespace."""
REPLACED = b"replaced"
VERSIONS = range(1, 4)
Report = Callable[[str, bytes], None]


def open_rig(directory: Path, storage: FaultyStorage | None = None) -> Rig:
    return Rig(directory, storage=storage, capacity_bytes=CAPACITY_BYTES, region_bytes=REGION_BYTES)


def put(rig: Rig, report: Report, entries: Sequence[bytes]) -> None:
    for entry in entries:
        if rig.put(entry):
            report("stored", entry)


def put_one(rig: Rig, report: Report) -> None:
    put(rig, report, NEW[:1])


def burst(rig: Rig, report: Report) -> None:
    """Batches in two regions, the extents of one written while the one before is made durable."""
    ended: list[bytes] = []

    def done(entry: bytes, is_stored: bool) -> None:
        ended.append(entry)
        if is_stored:
            report("stored", entry)

    for entry in NEW:
        assert rig.submit(entry, done=partial(done, entry))
    rig.wait(lambda: len(ended) == len(NEW))


def replace(rig: Rig, report: Report) -> None:
    """The same bytes at another place."""
    put(rig, report, OLD[-1:])


def switch_region(rig: Rig, report: Report) -> None:
    before = rig.tier.stats().regions
    put(rig, report, NEW)
    assert rig.tier.stats().regions != before or rig.tier.stats().disk_errors


def evict(rig: Rig, report: Report) -> None:
    """The oldest region goes, and its hot entries do not."""
    rig.tier.touch(HOT)
    put(rig, report, NEW)


def remove(rig: Rig, report: Report) -> None:
    if rig.drop(*OLD[-2:]):
        for entry in OLD[-2:]:
            report("gone", entry)


def clear(rig: Rig, report: Report) -> None:
    put(rig, report, NEW[:1])
    if rig.clear(None):
        for entry in (*OLD, NEW[0]):
            report("gone", entry)
    put(rig, report, NEW[1:2])


def value(version: int) -> list[memoryview]:
    return [memoryview(bytes([version]) * 5000), memoryview(bytes([version]) * 4096)]


def rewrite(rig: Rig, report: Report) -> None:
    """Other bytes under the same name, with others in between."""
    for version in VERSIONS:
        if rig.put(REPLACED, value(version), namespace=""):
            report("version", b"%d" % version)
        put(rig, report, NEW[2 * version - 2 : 2 * version])


def clear_namespace(rig: Rig, report: Report) -> None:
    if rig.put(OTHER, namespace="cd" * 32) and rig.clear("cd" * 32):
        report("gone", OTHER)


def lay_out_few(directory: Path) -> None:
    rig = open_rig(directory)
    assert [rig.put(entry) for entry in OLD] == [True] * len(OLD)
    rig.close()


def lay_out_full(directory: Path) -> None:
    """OLD lies in the oldest regions, and the next region that is opened evicts one of them."""
    rig = open_rig(directory.with_suffix(".trial"))
    num_fillers = 0
    while not rig.tier.stats().evictions:
        for entry in OLD if not num_fillers else ():
            assert rig.put(entry)
        assert rig.put(b"filler%d" % num_fillers)
        num_fillers += 1
    rig.close()
    lay_out_few(directory)
    rig = open_rig(directory)
    while not rig.tier.stats().evictions and num_fillers > REGION_BYTES // ENTRY_BYTES:
        num_fillers -= 1
        assert rig.put(b"filler%d" % num_fillers)
    assert not rig.tier.stats().evictions
    rig.close()


@dataclass(frozen=True)
class Scenario:
    """`keeps` are those of OLD that no kill may take. What it `removes` may be there or not once it
    has begun, until that is reported."""

    run: Callable[[Rig, Report], None]
    lay_out: Callable[[Path], None] = lay_out_few
    keeps: Sequence[bytes] = OLD
    removes: Sequence[bytes] = ()


SCENARIOS = {
    "put": Scenario(put_one),
    "burst": Scenario(burst),
    "replace": Scenario(replace),
    "region_switch": Scenario(switch_region),
    "eviction": Scenario(evict, lay_out_full, HOT),
    "removal": Scenario(remove, removes=OLD[-2:]),
    "rewrite": Scenario(rewrite),
    "clear_namespace": Scenario(clear_namespace),
    "clear": Scenario(clear, removes=(*OLD, NEW[0])),
}


def count_points(directory: Path, scenario: Scenario) -> list[str]:
    countdown = Countdown(0, kill)
    storage = FaultyStorage(countdown)
    rig = open_rig(directory, storage)
    storage.armed = True
    scenario.run(rig, lambda *_: None)
    rig.close()
    return countdown.points


class Told:
    """What the tier promised, in order: an entry stored, gone on demand, or evicted."""

    def __init__(self, stored: Sequence[bytes]) -> None:
        self.state = dict.fromkeys(stored, "stored")
        self.version = 0  # of REPLACED

    def __call__(self, what: str, entry: bytes) -> None:
        if what == "version":
            self.version = int(entry)
        else:
            self.state[entry] = what

    def stored(self) -> set[bytes]:
        return {entry for entry, what in self.state.items() if what == "stored"}

    def gone(self) -> set[bytes]:
        return {entry for entry, what in self.state.items() if what == "gone"}


def check(directory: Path, told: Told, may_miss: set[bytes]) -> None:
    """In a tier opened anew."""
    rig = open_rig(directory)
    there = set(rig.hits([*OLD, *NEW, OTHER]))
    assert told.stored() - there <= may_miss
    assert not told.gone() & there
    newer = [[bytes(part) for part in value(n)] for n in VERSIONS if n >= max(told.version, 1)]
    assert rig.get(REPLACED) in (newer if told.version else [None, *newer])
    listed = rig.listed()
    listed.discard(REPLACED)
    assert set(rig.hits(sorted(listed))) == listed
    stats = rig.tier.stats()
    assert stats.entries == len(rig.listed())
    taken = disk_bytes(directory)
    assert stats.used_bytes == pytest.approx(taken, abs=0.05 * CAPACITY_BYTES)
    assert taken <= 1.05 * CAPACITY_BYTES
    assert rig.put(b"afterwards")
    assert rig.hits([b"afterwards"]) == [b"afterwards"]
    rig.close()


def laid_out(tmp_path: Path, scenario: Scenario) -> tuple[Path, list[str]]:
    """A directory to copy, and the points of the scenario."""
    template = tmp_path / "template"
    scenario.lay_out(template)
    shutil.copytree(template, tmp_path / "count")
    return template, count_points(tmp_path / "count", scenario)


def tear_tail(directory: Path) -> None:
    """The end of a batch that a killed process was writing."""
    with region_files(directory)[-1].open("r+b") as file:
        file.seek(0, os.SEEK_END)
        file.write(os.urandom(12 * KIB))


def lose_index(directory: Path) -> None:
    shutil.rmtree(directory / "index")


def put_index_behind(directory: Path) -> None:
    """The log has a batch that the index has not."""
    storage = FaultyStorage(lambda point: disk_error(point) if point == "index" else None)
    rig = open_rig(directory, storage)
    storage.armed = True
    assert not rig.put(NEW[0])
    rig.close()


DAMAGES = {
    "nothing": lambda _: None,
    "torn_tail": tear_tail,
    "lost_index": lose_index,
    "index_behind": put_index_behind,
}

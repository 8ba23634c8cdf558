"""The file of an evicted region becomes the next region's."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from moontide.kvstore.nvme import ExtentRead
from moontide.transfer import aligned_buffer

from .conftest import OpenTier
from .faults import Countdown, FaultyStorage, kill
from .rig import MIB, Rig, content, disk_bytes, names

CAPACITY = 8 * MIB


def fill(rig: Rig, start: int = 0) -> int:
    """Until something was evicted; the number after the last entry."""
    before = rig.tier.stats().evictions
    while rig.tier.stats().evictions == before:
        rig.put_many(names(start, start + 20))
        start += 20
    return start


def test_a_full_tier_neither_allocates_nor_frees_files(open_tier: OpenTier) -> None:
    seen = Countdown(0, kill)
    storage = FaultyStorage(seen)
    rig = open_tier(capacity_bytes=CAPACITY, storage=storage)
    start = fill(rig)
    storage.armed = True
    for _ in range(5):
        start = fill(rig, start)
    assert seen.points.count("rename") >= 5
    assert not {"create", "unlink"} & set(seen.points)
    storage.armed = False
    newest = names(start - 100, start)
    assert rig.hits(newest) == newest


def test_what_is_being_read_is_not_overwritten(open_tier: OpenTier) -> None:
    """The region is evicted, and several more after it, while a read of it waits in the disk."""
    reading, go_on = threading.Event(), threading.Event()

    def wait_in(point: str) -> None:
        if point == "read" and threading.current_thread().name.startswith("nvme-reader"):
            reading.set()
            assert go_on.wait(30.0)

    storage = FaultyStorage(wait_in)
    rig = open_tier(capacity_bytes=CAPACITY, storage=storage, num_readers=1)
    rig.put_many(names(0, 20))
    (location,) = rig.tier.locate(names(0, 1))
    assert location is not None
    storage.armed = True
    buffers = [aligned_buffer(length)[:length] for length in location.extent_lengths]
    requests = [ExtentRead(location, extent, buffer) for extent, buffer in enumerate(buffers)]
    results: list[Sequence[bool]] = []
    assert rig.tier.read(requests, results.append)
    assert reading.wait(30.0)
    start = 20
    for _ in range(4):
        start = fill(rig, start)
    go_on.set()
    rig.wait(lambda: results)
    assert results == [[True] * len(buffers)]
    assert [bytes(buffer) for buffer in buffers] == [
        bytes(extent) for extent in content(names(0, 1)[0])
    ]
    assert rig.tier.stats().corrupt == 0


def test_a_file_that_waits_counts_as_used_and_goes_with_a_clear(
    open_tier: OpenTier, tmp_path: Path
) -> None:
    rig = open_tier(capacity_bytes=CAPACITY)
    fill(rig)
    directory = tmp_path / "nvme"
    assert len(list(directory.glob("*.draft"))) == 1
    assert abs(rig.tier.stats().used_bytes - disk_bytes(directory)) <= MIB // 4
    assert rig.tier.stats().used_bytes <= CAPACITY
    assert rig.clear(None)
    assert not list(directory.glob("region-*"))


def test_a_file_that_waited_when_the_process_ended_brings_nothing_back(
    open_tier: OpenTier, tmp_path: Path
) -> None:
    """Also when the index is lost, and the log is read."""
    rig = open_tier(capacity_bytes=CAPACITY)
    fill(rig)
    (draft,) = (tmp_path / "nvme").glob("*.draft")
    held, gone = draft.read_bytes(), {entry.entry for entry in rig.removed}
    assert gone
    rig.close()
    draft.write_bytes(held)
    (tmp_path / "nvme/index/data.mdb").unlink()
    rig = open_tier(capacity_bytes=CAPACITY)
    assert not draft.exists()
    assert not gone & rig.listed()

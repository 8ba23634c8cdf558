"""A tier on a file system that is really full."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from .rig import MIB, Rig, names


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs takes root")
    mount = tmp_path / "disk"
    mount.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", mount], check=True, timeout=20
    )
    yield mount
    subprocess.run(["umount", "-l", mount], check=True, timeout=20)


def fill_up(path: Path) -> None:
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass


def test_r63_full_disk_fails_writes_and_the_tier_lives(small_disk: Path) -> None:
    """The tier may take more than the disk has, and somebody else takes the rest."""
    rig = Rig(small_disk / "nvme", capacity_bytes=64 * MIB)
    rig.put_many(names(0, 100))
    ballast = small_disk / "ballast"
    fill_up(ballast)
    for start in range(1000, 4000, 100):
        results = rig.put_many(names(start, start + 100))
        entries = names(start, start + 100)
        good = {entry for entry, is_stored in zip(entries, results, strict=True) if is_stored}
        evicted = {entry.entry for entry in rig.removed}
        there = set(rig.hits(entries))
        assert there <= good
        assert good - there <= evicted
    ballast.unlink()
    assert rig.put(b"afterwards")
    assert rig.hits([b"afterwards"]) == [b"afterwards"]
    listed = rig.listed()
    rig.close()
    rig = Rig(small_disk / "nvme", capacity_bytes=64 * MIB)
    assert listed <= rig.listed()
    assert rig.hits([b"afterwards"]) == [b"afterwards"]
    rig.close()


def test_r63_index_that_cannot_grow_fails_its_operations(small_disk: Path) -> None:
    """Regions lie elsewhere; only the index meets the full disk."""
    directory = small_disk.parent / "nvme"
    directory.mkdir()
    (small_disk / "index").mkdir()
    (directory / "index").symlink_to(small_disk / "index")
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(7 * MIB))
    rig = Rig(directory, capacity_bytes=256 * MIB, region_bytes=4 * MIB)
    failed = False
    for start in range(0, 20_000, 1000):
        results: list[bool] = []
        for entry in names(start, start + 1000):
            rig.wait(lambda e=entry, r=results: rig.submit(e, [memoryview(e)], r.append))
        rig.hurry()
        rig.wait(lambda r=results: len(r) == 1000)
        failed = failed or not all(results)
        there = [value is not None for value in rig.tier.locate(names(start, start + 1000))]
        assert there == results
    assert failed
    assert rig.tier.stats().disk_errors > 0
    ballast.unlink()
    assert rig.put(b"afterwards")
    assert rig.hits([b"afterwards"]) == [b"afterwards"]
    rig.close()


def test_r43_a_start_on_a_full_disk_makes_room(small_disk: Path) -> None:
    """Whoever opens the tier has files of its own to write there."""
    rig = Rig(small_disk / "nvme", capacity_bytes=64 * MIB, free_floor_bytes=MIB)
    rig.put_many(names(0, 300))
    rig.close()
    fill_up(small_disk / "ballast")
    rig = Rig(small_disk / "nvme", capacity_bytes=64 * MIB, free_floor_bytes=MIB)
    assert 0 < rig.tier.stats().entries < 300
    file_system = os.statvfs(small_disk)
    assert file_system.f_bavail * file_system.f_frsize >= MIB
    assert set(rig.hits(names(0, 300))) == rig.listed()
    rig.close()

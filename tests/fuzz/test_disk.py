"""A data directory damaged anyhow, while nobody used it: the tier opens, gives right bytes or
misses, takes new entries, and the damage it has met it does not meet again."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from moontide.kvstore.nvme.index_scan import scan
from moontide.kvstore.nvme.probe import probe

from ..kvstore.nvme.rig import Rig, names, region_files

MIB = 1 << 20
OLD, NEW = names(0, 150), names(1000, 1030, "n")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written") / "nvme"
    rig = Rig(folder)
    rig.put_many(OLD)
    rig.drop(*OLD[::10])
    rig.close()
    return folder


def flip(rng: random.Random, path: Path) -> None:
    with path.open("r+b") as file:
        for _ in range(rng.choice([1, 10, 200])):
            at = rng.randrange(path.stat().st_size)
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1 << rng.randrange(8)]))


def smear(rng: random.Random, path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(rng.randrange(path.stat().st_size))
        length = rng.choice([16, 4096, 100_000])
        file.write(rng.choice([bytes(length), b"\xff" * length, rng.randbytes(length)]))


def truncate(rng: random.Random, path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(rng.choice([0, 1, rng.randrange(path.stat().st_size)]))


def grow(rng: random.Random, path: Path) -> None:
    with path.open("ab") as file:
        file.write(rng.randbytes(rng.choice([1, 4096, MIB])))


def move_pages(rng: random.Random, path: Path) -> None:
    """What one place held lies at another: whole, with a checksum that fits."""
    data = bytearray(path.read_bytes())
    here, there = (rng.randrange(max(1, len(data) // 4096)) * 4096 for _ in range(2))
    length = rng.choice([4096, 65_536])
    data[there : there + length] = data[here : here + length]
    path.write_bytes(data)


def delete(rng: random.Random, path: Path) -> None:
    path.unlink()


def exchange(rng: random.Random, path: Path) -> None:
    """Another file of the tier under this name."""
    other = rng.choice([entry for entry in path.parent.iterdir() if entry.is_file()])
    if other != path:
        path.write_bytes(other.read_bytes())


def duplicate(rng: random.Random, path: Path) -> None:
    shutil.copy(path, path.with_name(f"region-{rng.choice([0, 1, 2, 99, 2**32]):08}.log"))


def become_a_directory(rng: random.Random, path: Path) -> None:
    """The index is one itself: what lies in it is its own, and a start refuses what is not."""
    if path.parent.name != "index":
        path.unlink()
        path.mkdir()


DAMAGES: list[Callable[[random.Random, Path], None]] = [
    flip,
    smear,
    truncate,
    grow,
    move_pages,
    delete,
    exchange,
    duplicate,
    become_a_directory,
]


def damage(rng: random.Random, folder: Path) -> None:
    for _ in range(rng.choice([1, 1, 2, 4])):
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        files = [path for path in files if path.stat().st_size]
        if files:
            rng.choice(DAMAGES)(rng, rng.choice(files))


def check_damaged(written: Path, folder: Path, seed: int) -> None:
    shutil.copytree(written, folder)
    damage(random.Random(seed), folder)
    for look in (probe, scan):  # in another process first: what is damaged may crash it
        rig = Rig(folder, probe=look)
        found = set(rig.hits(OLD))
        assert not found & set(OLD[::10]), f"seed {seed}: removed entries are back"
        assert all(rig.put_many(NEW)), f"seed {seed}"
        assert rig.hits(NEW) == NEW, f"seed {seed}"
        rig.close()
    rig = Rig(folder)
    assert set(rig.hits(OLD)) >= found, f"seed {seed}: lost without further damage"
    assert rig.hits(NEW) == NEW, f"seed {seed}"
    rig.close()
    assert region_files(folder)
    shutil.rmtree(folder)


@pytest.mark.timeout(180)
def test_any_damage_to_the_disk_gives_right_bytes_or_misses(written: Path, tmp_path: Path) -> None:
    for seed in range(5):
        check_damaged(written, tmp_path / str(seed), seed)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_any_damage_to_the_disk_for_long(written: Path, tmp_path: Path) -> None:
    start = random.SystemRandom().randrange(1 << 32)
    for seed in range(start, start + 300):
        print("seed", seed)
        check_damaged(written, tmp_path / str(seed), seed)

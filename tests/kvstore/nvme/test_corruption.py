"""Damage to files between two lives: no wrong byte, ready by itself, the rest still hits."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from moontide.kvstore.nvme.probe import Verdict, probe

from .conftest import OpenTier
from .rig import names, region_files

PAGE = 4096
NAMES = names(0, 250)


def flip_bits(path: Path, source: random.Random, *, first: int = 0, count: int = 40) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(count):
        data[source.randrange(first, len(data))] ^= 1 << source.randrange(8)
    path.write_bytes(data)


def zero_pages(path: Path, source: random.Random, *, count: int = 10) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(count):
        start = source.randrange(len(data) // PAGE) * PAGE
        data[start : start + PAGE] = bytes(PAGE)
    path.write_bytes(data)


def swap_pages(path: Path, source: random.Random, *, count: int = 10) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(count):
        a, b = (source.randrange(1, len(data) // PAGE) * PAGE for _ in range(2))
        data[a : a + PAGE], data[b : b + PAGE] = data[b : b + PAGE], data[a : a + PAGE]
    path.write_bytes(data)


def smear(path: Path, source: random.Random, *, count: int = 10) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(count):
        start = source.randrange(len(data) - 16)
        data[start : start + 16] = source.randbytes(16)
    path.write_bytes(data)


def truncate(path: Path, source: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: source.randrange(len(data))])


def garbage(path: Path, source: random.Random) -> None:
    path.write_bytes(source.randbytes(path.stat().st_size))


def empty(path: Path, _: random.Random) -> None:
    path.write_bytes(b"")


def delete(path: Path, _: random.Random) -> None:
    path.unlink()


DAMAGES = [flip_bits, zero_pages, swap_pages, smear, truncate, garbage, empty, delete]
Damage = Callable[[Path, random.Random], None]


def fill(open_tier: OpenTier) -> None:
    rig = open_tier()
    rig.put_many(NAMES)
    rig.close()


@pytest.mark.parametrize("with_index", [True, False], ids=["index", "no-index"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_region_gives_no_wrong_byte(
    open_tier: OpenTier, tmp_path: Path, damage: Damage, with_index: bool
) -> None:
    fill(open_tier)
    damage(region_files(tmp_path / "nvme")[1], random.Random(1))
    if not with_index:
        (tmp_path / "nvme/index/data.mdb").unlink()
    rig = open_tier()
    hits = rig.hits(NAMES)
    assert len(hits) >= len(NAMES) // 3
    rig.put(b"settles")
    rig.wait(lambda: len(rig.hits(NAMES)) == len(rig.listed() - {b"settles"}))
    assert rig.hits(NAMES) == hits
    rewritten = [entry for entry in NAMES if entry not in hits]
    assert all(rig.put_many(rewritten))
    assert rig.hits(NAMES) == NAMES


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_index_is_found_out_and_rebuilt(
    open_tier: OpenTier, tmp_path: Path, damage: Damage
) -> None:
    fill(open_tier)
    damage(tmp_path / "nvme/index/data.mdb", random.Random(2))
    started = time.monotonic()
    rig = open_tier(probe=probe)
    assert time.monotonic() - started < 60
    assert rig.hits(NAMES) == NAMES
    assert all(rig.put_many(names(1000, 1050)))


@pytest.mark.parametrize("seed", range(3))
def test_smeared_records_never_pass(open_tier: OpenTier, tmp_path: Path, seed: int) -> None:
    """Smears inside records, where LMDB itself sees nothing wrong."""
    fill(open_tier)
    path = tmp_path / "nvme/index/data.mdb"
    data = bytearray(path.read_bytes())
    source = random.Random(seed)
    spots = [at for at in range(0, len(data) - 64, 64) if NAMES[seed][:8] in data[at : at + 64]]
    for spot in source.sample(spots, 5):
        data[spot + source.randrange(64)] ^= 0xFF
    path.write_bytes(data)
    rig = open_tier(probe=probe)
    assert rig.hits(NAMES) == NAMES


def test_two_whole_regions_swapped_by_content(open_tier: OpenTier, tmp_path: Path) -> None:
    """Bodies exchanged under their headers: every extent fails its checksum, none is wrong."""
    fill(open_tier)
    first, second, *_ = region_files(tmp_path / "nvme")
    a, b = first.read_bytes(), second.read_bytes()
    first.write_bytes(a[:PAGE] + b[PAGE:])
    second.write_bytes(b[:PAGE] + a[PAGE:])
    rig = open_tier()
    assert len(rig.hits(NAMES)) < len(NAMES)
    assert rig.tier.stats().corrupt > 0


def test_probe_says_what_it_found(open_tier: OpenTier, tmp_path: Path) -> None:
    index = tmp_path / "nvme/index"
    assert probe(index) is Verdict.ABSENT
    fill(open_tier)
    assert probe(index) is Verdict.SOUND
    garbage(index / "data.mdb", random.Random(3))
    assert probe(index) is Verdict.DAMAGED

"""Opening a directory: warm restarts, leftovers, other versions, damage to whole files."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from moontide.kvstore.errors import StoreUnavailable
from moontide.kvstore.nvme.identity import IDENTITY_FILE
from moontide.kvstore.nvme.log_format import (
    VERSION,
    RegionHeader,
    decode_region_header,
    encode_region_header,
)
from moontide.kvstore.nvme.probe import Verdict
from moontide.kvstore.nvme.storage import RegionFile, Storage
from moontide.transfer import FileAccess
from moontide.transfer.errors import FileFailed
from moontide.transfer.types import PAGE_BYTES

from ...waiting import wait_until
from .conftest import OpenTier
from .rig import MIB, Rig, disk_bytes, names, region_files


def digests(rig: Rig, entries: list[bytes]) -> list[str]:
    values = rig.get_many(entries)
    return [hashlib.sha256(b"".join(value or [])).hexdigest() for value in values]  # type: ignore[arg-type]  # no extent failed


def files_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in region_files(directory)}


def test_r02_hits_after_restarts_are_exact_and_a_second_restart_changes_nothing(
    open_tier: OpenTier, tmp_path: Path
) -> None:
    entries = names(0, 500)
    rig = open_tier()
    rig.put_many(entries)
    before = digests(rig, entries)
    rig = open_tier()
    assert digests(rig, entries) == before
    assert not rig.tier.stats().index_rebuilt
    stats, files = rig.tier.stats(), files_of(tmp_path / "nvme")
    rig = open_tier()
    assert digests(rig, entries) == before
    assert files_of(tmp_path / "nvme") == files
    again = rig.tier.stats()
    assert (again.entries, again.used_bytes) == (stats.entries, stats.used_bytes)
    assert rig.stored == rig.removed == []


def test_many_restarts_with_few_writes_evict_nothing(open_tier: OpenTier) -> None:
    rig = open_tier(capacity_bytes=6 * MIB)
    entries = names(0, 100)
    rig.put_many(entries)
    for number in range(8):
        rig = open_tier(capacity_bytes=6 * MIB)
        rig.put(b"extra%d" % number)
    assert rig.hits(entries) == entries
    assert rig.tier.stats().entries == 108


@pytest.mark.parametrize("lost", ["index", "index/data.mdb"])
def test_lost_index_is_rebuilt_from_the_regions(
    open_tier: OpenTier, tmp_path: Path, lost: str
) -> None:
    rig = open_tier(capacity_bytes=6 * MIB)
    rig.put_many(names(0, 900))
    rig.drop(*names(850, 900))
    rig.put(b"s1", [memoryview(b"old")], namespace="")
    rig.put(b"s1", [memoryview(b"new")], namespace="")
    rig.put(b"gone", namespace="cd" * 32)
    rig.clear("cd" * 32)
    left = rig.listed()
    rig.close()
    path = tmp_path / "nvme" / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    rig = open_tier(capacity_bytes=6 * MIB)
    assert rig.tier.stats().index_rebuilt
    assert rig.listed() == left
    assert rig.get(b"s1") == [b"new"]
    assert rig.hits(sorted(left - {b"s1"})) == sorted(left - {b"s1"})


def test_index_behind_the_log_catches_up(open_tier: OpenTier, tmp_path: Path) -> None:
    """As after a crash between the log's sync and the index's commit."""
    index = tmp_path / "nvme/index/data.mdb"
    rig = open_tier()
    rig.put_many(names(0, 50))
    old = index.read_bytes()
    rig.put_many(names(50, 300))
    rig.drop(*names(0, 10))
    rig.close()
    index.write_bytes(old)
    rig = open_tier()
    assert not rig.tier.stats().index_rebuilt
    assert rig.hits(names(0, 300)) == names(10, 300)


def test_index_ahead_of_the_regions_forgets(open_tier: OpenTier, tmp_path: Path) -> None:
    rig = open_tier()
    rig.put_many(names(0, 400))
    rig.close()
    region_files(tmp_path / "nvme")[1].unlink()
    rig = open_tier()
    assert 0 < rig.tier.stats().entries < 400
    assert set(rig.hits(names(0, 400))) == rig.listed()


def test_r45_leftovers_are_adopted_removed_or_reported(open_tier: OpenTier, tmp_path: Path) -> None:
    rig = open_tier()
    rig.put_many(names(0, 100))
    rig.close()
    directory = tmp_path / "nvme"
    draft = directory / "region-000000ff.log.draft"
    draft.write_bytes(bytes(5000))
    empty = directory / "region-000000fe.log"
    tier = decode_region_header(region_files(directory)[0].read_bytes()).tier
    empty.write_bytes(encode_region_header(RegionHeader(0xFE, tier + bytes(8))) + bytes(MIB))
    headless = directory / "region-000000fd.log"
    headless.write_bytes(bytes(9000))
    (directory / "notes.txt").write_text("mine")
    (directory / "photos").mkdir()
    (directory / "region-link.log").symlink_to("/etc/passwd")
    (directory / "region-000000fc.log").symlink_to(directory / "notes.txt")
    rig = open_tier()
    assert not any(path.exists() for path in (draft, empty, headless))
    assert (directory / "notes.txt").read_text() == "mine"
    assert (directory / "photos").is_dir()
    assert set(rig.tier.stats().foreign_files) == {
        "notes.txt",
        "photos",
        "region-link.log",
        "region-000000fc.log",
    }
    assert rig.hits(names(0, 100)) == names(0, 100)
    assert rig.put(b"k1")


def lose_index(directory: Path) -> None:
    (directory / "index" / "data.mdb").unlink()


@pytest.mark.parametrize("spoil", [lambda _: None, lose_index])
def test_regions_of_another_tier_are_left_alone(
    open_tier: OpenTier, tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    """Its string entries have the same names and other bytes."""
    other = open_tier(directory=tmp_path / "other")
    for number in range(4):
        other.put(b"s%d" % number, [memoryview(bytes(500_000))], namespace="")
    rig = open_tier()
    rig.put_many(names(0, 300))
    rig.put(b"s1", [memoryview(b"mine")], namespace="")
    directory = tmp_path / "nvme"
    rig.close()
    planted = directory / "region-00000abc.log"
    shutil.copy(region_files(tmp_path / "other")[-1], planted)
    spoil(directory)
    for _ in range(2):
        rig = open_tier()
        assert rig.tier.stats().foreign_files == (planted.name,)
        assert rig.get_many([b"s0", b"s1", b"s2", b"s3"]) == [None, [b"mine"], None, None]
        assert rig.hits(names(0, 300)) == names(0, 300)
        assert planted.exists()


@pytest.mark.parametrize("is_planted", [True, False])
def test_index_of_another_tier_is_made_anew(
    open_tier: OpenTier, tmp_path: Path, is_planted: bool
) -> None:
    """Whether or not that tier's regions came with it."""
    other = open_tier(directory=tmp_path / "other")
    other.put(b"s1", [memoryview(bytes(500_000))], namespace="")
    rig = open_tier()
    rig.put_many(names(0, 300))
    rig.put(b"s1", [memoryview(b"mine")], namespace="")
    rig.close()
    directory = tmp_path / "nvme"
    if is_planted:
        for region in region_files(tmp_path / "other"):
            shutil.copy(region, directory / f"region-00aa{region.name[-8:]}")
    shutil.copy(tmp_path / "other/index/data.mdb", directory / "index/data.mdb")
    rig = open_tier()
    assert rig.tier.stats().index_rebuilt
    assert rig.get(b"s1") == [b"mine"]
    assert rig.hits(names(0, 300)) == names(0, 300)


def damage_header(region: Path, entry: bytes) -> None:
    """Of the batch whose header names `entry` as removed."""
    data = bytearray(region.read_bytes())
    place = data.rindex(entry)
    data[place] ^= 1
    region.write_bytes(data)


def cut_off(region: Path, entry: bytes) -> None:
    """The file ends before that batch."""
    os.truncate(region, region.read_bytes().rindex(entry) // PAGE_BYTES * PAGE_BYTES)


@pytest.mark.parametrize("spoil", [damage_header, cut_off])
@pytest.mark.parametrize("is_last", [True, False])
def test_a_removal_that_was_lost_brings_no_string_back(
    open_tier: OpenTier,
    tmp_path: Path,
    is_last: bool,
    spoil: Callable[[Path, bytes], None],
) -> None:
    rig = open_tier()
    rig.put(b"removed", [memoryview(b"old")], namespace="")
    rig.put_many(names(0, 50))
    rig.drop(b"removed")
    if not is_last:
        rig.put(b"later", [memoryview(b"new")], namespace="")
    rig.close()
    spoil(region_files(tmp_path / "nvme")[0], b"removed")
    rig = open_tier()
    assert rig.get(b"removed") is None
    assert rig.hits(names(0, 50)) == names(0, 50), "the index knows"
    rig.close()
    lose_index(tmp_path / "nvme")
    for _ in range(2):
        rig = open_tier()
        assert rig.get(b"removed") is None
        is_there = not is_last and spoil is damage_header
        assert rig.get(b"later") == ([b"new"] if is_there else None)
        assert rig.hits(names(0, 50)) == names(0, 50), "KV blocks are what their keys say"
    assert rig.put(b"after", [memoryview(b"good")], namespace="")
    for lose in (lambda _: None, lose_index):
        rig.close()
        lose(tmp_path / "nvme")
        rig = open_tier()
        assert rig.get_many([b"removed", b"after"]) == [None, [b"good"]]


@pytest.mark.parametrize("content", [None, b"", bytes(40), b"notes"])
def test_without_its_identity_a_tier_goes_on(
    open_tier: OpenTier, tmp_path: Path, content: bytes | None
) -> None:
    """With the index gone too, nobody knows whether strings are up to date."""
    rig = open_tier()
    rig.put(b"s1", [memoryview(b"mine")], namespace="")
    rig.put_many(names(0, 50))
    rig.close()
    for is_index_lost in (False, True):
        identity = tmp_path / "nvme" / IDENTITY_FILE
        identity.unlink()
        if content is None:
            identity.mkdir()
        else:
            identity.write_bytes(content)
        if is_index_lost:
            lose_index(tmp_path / "nvme")
        rig = open_tier()
        assert rig.get(b"s1") == (None if is_index_lost else [b"mine"])
        assert rig.hits(names(0, 50)) == names(0, 50)
        rig.close()


def test_regions_that_cannot_be_opened_for_now_are_kept(
    open_tier: OpenTier, tmp_path: Path
) -> None:
    rig = open_tier()
    rig.put_many(names(0, 300))
    rig.close()

    class NoDescriptors(Storage):
        def open_file(self, path: Path, access: FileAccess) -> RegionFile:
            raise FileFailed(OSError(errno.EMFILE, "injected"), str(path))

    with pytest.raises(StoreUnavailable):
        Rig(tmp_path / "nvme", storage=NoDescriptors())
    rig = open_tier()
    assert rig.hits(names(0, 300)) == names(0, 300)


def test_regions_of_another_format_are_set_aside(open_tier: OpenTier, tmp_path: Path) -> None:
    rig = open_tier()
    rig.put_many(names(0, 200))
    rig.close()
    path = region_files(tmp_path / "nvme")[0]
    data = bytearray(path.read_bytes())
    data[8:10] = struct.pack("<H", VERSION + 1)
    path.write_bytes(data)
    for _ in range(2):
        rig = open_tier()
        assert rig.tier.stats().set_aside_files == (path.name,)
        assert (tmp_path / "nvme/set-aside" / path.name).read_bytes() == data
        assert set(rig.hits(names(0, 200))) == rig.listed() != set()
    rig.put_many(names(1000, 2500))
    assert disk_bytes(tmp_path / "nvme") <= 1.05 * 16 * MIB


def test_index_of_another_format_is_set_aside(open_tier: OpenTier, tmp_path: Path) -> None:
    import lmdb

    rig = open_tier()
    rig.put_many(names(0, 50))
    rig.close()
    with lmdb.open(str(tmp_path / "nvme/index"), max_dbs=4) as env:
        meta = env.open_db(b"meta")
        with env.begin(write=True) as txn:
            txn.put(b"format", struct.pack("<I", 99), db=meta)
    rig = open_tier()
    assert rig.tier.stats().index_rebuilt
    assert "index/data.mdb" in rig.tier.stats().set_aside_files
    assert rig.hits(names(0, 50)) == names(0, 50)


def test_swapped_region_files_are_known_by_their_headers(
    open_tier: OpenTier, tmp_path: Path
) -> None:
    rig = open_tier()
    rig.put_many(names(0, 300))
    rig.close()
    first, second, *_ = region_files(tmp_path / "nvme")
    spare = tmp_path / "spare"
    first.rename(spare)
    second.rename(first)
    spare.rename(second)
    rig = open_tier()
    assert rig.hits(names(0, 300)) == names(0, 300)
    assert all(rig.put_many(names(300, 600)))
    assert len(rig.hits(names(0, 600))) == 600


def test_copy_of_a_region_is_set_aside(open_tier: OpenTier, tmp_path: Path) -> None:
    rig = open_tier()
    rig.put_many(names(0, 100))
    rig.close()
    first = region_files(tmp_path / "nvme")[0]
    shutil.copy(first, first.with_name("region-000000aa.log"))
    rig = open_tier()
    assert rig.tier.stats().set_aside_files == ("region-000000aa.log",)
    assert rig.hits(names(0, 100)) == names(0, 100)


def test_smaller_capacity_keeps_the_newest(open_tier: OpenTier, tmp_path: Path) -> None:
    rig = open_tier(capacity_bytes=32 * MIB)
    rig.put_many(names(0, 2000))
    rig = open_tier(capacity_bytes=8 * MIB)
    assert disk_bytes(tmp_path / "nvme") <= 1.05 * 8 * MIB
    assert rig.hits(names(1900, 2000)) == names(1900, 2000)
    assert all(rig.put_many(names(3000, 3100)))


def test_unusable_directory_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable, match=r"cannot use .*file"):
        Rig(tmp_path / "file")


def test_nothing_stays_open_after_close(open_tier: OpenTier) -> None:
    before = len(os.listdir("/proc/self/fd"))
    rig = open_tier()
    rig.put_many(names(0, 300))
    rig.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_tier_whose_index_cannot_be_looked_at_leaves_no_thread(tmp_path: Path) -> None:
    def fail(_: Path) -> Verdict:
        raise OSError(errno.EAGAIN, "no process can be started")

    before = set(threading.enumerate())
    with pytest.raises(StoreUnavailable, match="no process can be started"):
        Rig(tmp_path, probe=fail)
    wait_until(lambda: set(threading.enumerate()) <= before)

"""What the tier takes: disk, index, entries; and what it keeps when it must let go."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from moontide.kvstore.nvme import NvmeSettings
from moontide.kvstore.nvme.index import MAX_RECORD_BYTES, NvmeIndex, Put, Remove
from moontide.kvstore.nvme.records import EntryRecord, Names, Place, encode_record
from moontide.kvstore.nvme.storage import Storage

from .conftest import OpenTier
from .rig import MIB, content, disk_bytes, names, region_files

DISK_BYTES = 1 << 30


def test_r43_capacity_holds_while_six_times_as_much_is_written(
    open_tier: OpenTier, tmp_path: Path
) -> None:
    capacity = 12 * MIB
    rig = open_tier(capacity_bytes=capacity)
    entries = names(0, 6 * capacity // (12 << 10))
    most = 0
    for start in range(0, len(entries), 200):
        assert all(rig.put_many(entries[start : start + 200]))
        most = max(most, disk_bytes(tmp_path / "nvme"))
    assert most <= 1.05 * capacity
    stats = rig.tier.stats()
    assert stats.used_bytes <= capacity
    assert stats.evictions == len(rig.removed) == len(entries) - stats.entries
    assert stats.entries * 12 << 10 >= capacity // 2
    newest = entries[-stats.entries :]
    assert rig.hits(newest) == newest


def test_r43_capacity_holds_for_tiny_entries(open_tier: OpenTier, tmp_path: Path) -> None:
    capacity = 6 * MIB
    rig = open_tier(capacity_bytes=capacity, region_bytes=MIB)
    for number in range(12):
        results: list[bool] = []
        for entry in names(1000 * number, 1000 * (number + 1)):
            data = [memoryview(entry)]
            rig.wait(lambda e=entry, d=data, r=results: rig.submit(e, d, r.append, namespace=""))
        rig.wait(lambda r=results: len(r) == 1000)
        assert all(results)
        assert disk_bytes(tmp_path / "nvme") <= 1.05 * capacity
    assert rig.get(names(11_999, 12_000)[0]) == names(11_999, 12_000)


def test_r43_default_limits_exist(tmp_path: Path) -> None:
    settings = NvmeSettings(directory=tmp_path, capacity_bytes=1 << 34)
    assert settings.entry_limit == (1 << 34) // 4096
    assert settings.index_map_bytes <= settings.capacity_bytes // 4
    assert 0 < settings.free_floor() <= 1 << 30


def test_entry_limit_evicts(open_tier: OpenTier) -> None:
    rig = open_tier(max_entries=50)
    rig.put_many(names(0, 300))
    assert 0 < rig.tier.stats().entries <= 50


def test_entry_limit_of_one_region_record_keeps_hot_ones_from_stopping_it(
    open_tier: OpenTier,
) -> None:
    rig = open_tier(max_entries=8)
    for entry in names(0, 40):
        assert rig.put(entry)
        rig.tier.touch(names(0, 40))
    assert 0 < rig.tier.stats().entries <= 8


def test_hot_entries_outlive_their_region_at_the_entry_limit_too(open_tier: OpenTier) -> None:
    rig = open_tier(max_entries=400)
    hot = names(0, 20)
    rig.put_many(hot)
    for start in range(0, 2000, 40):
        assert all(rig.put_many(names(start, start + 40, prefix="cold")))
        rig.tier.touch(hot)
        assert rig.tier.stats().entries <= 400
    assert not {entry.entry for entry in rig.removed} & set(hot)
    assert rig.tier.stats().entries >= 300


class OwnDisk(Storage):
    """One to which nobody else writes."""

    def free_bytes(self, directory: Path) -> int:
        return DISK_BYTES - disk_bytes(directory)


def test_free_space_floor_is_kept(open_tier: OpenTier, tmp_path: Path) -> None:
    """The floor asks for all that is free now, but for two regions."""
    floor = DISK_BYTES - 2 * MIB - MIB // 2
    rig = open_tier(free_floor_bytes=floor, capacity_bytes=64 * MIB, storage=OwnDisk())
    rig.put_many(names(0, 1000))
    assert len(region_files(tmp_path / "nvme")) <= 4


def test_no_room_at_all_fails_writes_and_lives(open_tier: OpenTier) -> None:
    rig = open_tier(free_floor_bytes=1 << 60)
    assert not rig.put(b"k1")
    assert not rig.flush()
    assert rig.tier.stats().disk_errors > 0
    assert rig.tier.locate([b"k1"]) == [None]


def test_entry_larger_than_a_region_fails(open_tier: OpenTier) -> None:
    rig = open_tier()
    assert not rig.put(b"k1", [memoryview(bytes(MIB))])
    assert rig.put(b"k2", [memoryview(bytes(MIB - 64 * 1024))])
    assert rig.get(b"k2") == [bytes(MIB - 64 * 1024)]


def test_hot_entries_outlive_their_region(open_tier: OpenTier) -> None:
    rig = open_tier(capacity_bytes=8 * MIB)
    hot = names(0, 20)
    rig.put_many(hot)
    for start in range(0, 3000, 100):
        rig.put_many(names(start, start + 100, prefix="cold"))
        assert rig.hits(hot) == hot
    stats = rig.tier.stats()
    assert stats.evictions > 1000
    assert stats.reinserted >= 20
    assert not {entry.entry for entry in rig.removed} & set(hot)


def test_touched_entries_outlive_their_region_once(open_tier: OpenTier) -> None:
    rig = open_tier(capacity_bytes=8 * MIB)
    rig.put_many(names(0, 40))
    rig.tier.touch(names(0, 20))
    start = 0
    while rig.tier.locate(names(30, 31))[0] is not None:
        rig.put_many(names(start, start + 50, prefix="cold"))
        start += 50
    assert rig.hits(names(0, 40)) == names(0, 20)


def test_hot_entries_that_come_again_by_themselves_go_with_their_region(
    open_tier: OpenTier,
) -> None:
    above = set(names(0, 10))
    rig = open_tier(capacity_bytes=8 * MIB, comes_again=above.__contains__)
    rig.put_many(names(0, 40))
    rig.tier.touch(names(0, 20))
    start = 0
    while rig.tier.locate(names(30, 31))[0] is not None:
        rig.put_many(names(start, start + 50, prefix="cold"))
        start += 50
    assert rig.hits(names(0, 40)) == names(10, 20)


def test_half_a_region_of_hot_pages_outlives_it(open_tier: OpenTier) -> None:
    """Room is taken for what entries take, not for what they might if each stood badly."""
    rig = open_tier(capacity_bytes=16 * MIB)
    hot, results = names(0, 120), list[bool]()
    for entry in hot:
        assert rig.submit(entry, content(entry, extents=1), results.append)
    rig.hurry()
    rig.wait(lambda: len(results) == len(hot))
    rig.tier.touch(hot)
    start = 0
    while not rig.tier.stats().reinserted:
        rig.put_many(names(start, start + 50, prefix="cold"))
        start += 50
    assert None not in rig.tier.locate(hot)


def test_more_than_half_a_region_of_hot_pages_outlives_it_after_cold_regions(
    open_tier: OpenTier,
) -> None:
    """Hot entries lie together; what cold regions did not need is theirs."""
    rig = open_tier(capacity_bytes=16 * MIB)
    start, results = 0, list[bool]()

    def put_cold(count: int) -> None:
        nonlocal start
        rig.put_many(names(start, start + count, prefix="cold"))
        start += count

    while not rig.removed:
        put_cold(50)
    hot = names(0, 340)
    for first in range(0, len(hot), 20):
        for entry in hot[first : first + 20]:
            assert rig.submit(entry, content(entry, extents=1), results.append)
        rig.hurry()
        put_cold(1)
    assert results == [True] * len(hot)
    rig.tier.touch(hot)
    after = names(start - 1, start, prefix="cold")
    while rig.tier.locate(after) != [None]:
        put_cold(50)
    assert None not in rig.tier.locate(hot)


def test_hot_entries_alone_cannot_stop_the_log(open_tier: OpenTier) -> None:
    rig = open_tier(capacity_bytes=8 * MIB)
    for start in range(0, 2000, 100):
        assert all(rig.put_many(names(start, start + 100)))
        rig.tier.touch(names(0, start + 100))
    assert rig.tier.stats().evictions > 500


def record(number: int, *, region: int, extents: int = 32) -> EntryRecord:
    name = b"k%016d" % number
    return EntryRecord(
        encode_record(
            Place(region, number, 4096 * (number + 1), 1),
            Names(bytes(32), bytes(16), name),
            element_bytes=2,
            stored_lengths=[4096] * extents,
            lengths=[4096] * extents,
            checksums=list(range(extents)),
        )
    )


def churn(index: NvmeIndex, *, rounds: range, live: int) -> None:
    """Each round replaces the oldest region's entries by a new one's."""
    for turn in rounds:
        puts = [Put(record(number, region=turn)) for number in range(live // 4)]
        index.apply([Put(p.record) for p in puts], None)
        index.purge(max(turn - 4, 0))


def test_r66_values_stay_out_of_the_index(open_tier: OpenTier, tmp_path: Path) -> None:
    rig = open_tier(capacity_bytes=64 * MIB, region_bytes=8 * MIB)
    assert rig.put(b"s1", [memoryview(b"needle" * 1_000_000)], namespace="")
    assert b"needle" * 3 not in (tmp_path / "nvme/index/data.mdb").read_bytes()


def test_r66_index_stays_within_twice_its_size_after_churn(tmp_path: Path) -> None:
    index = NvmeIndex(tmp_path / "index", 64 * MIB, Storage())
    churn(index, rounds=range(1, 5), live=2000)
    before = index.file_bytes()
    churn(index, rounds=range(5, 45), live=2000)
    assert index.file_bytes() <= 2 * before
    assert index.used_ratio() * 64 * MIB <= before
    index.check_integrity()
    index.close()


@pytest.mark.parametrize("extents", [1, 100, 163, 164, 2000])
def test_r66_long_tables_are_split(tmp_path: Path, extents: int) -> None:
    index = NvmeIndex(tmp_path / "index", 16 * MIB, Storage())
    wanted = record(1, region=1, extents=extents)
    index.apply([Put(wanted)], None)
    (found,) = index.find([wanted.entry])
    assert found is not None
    assert found.body == wanted.body
    whole = len(wanted.body) + 8  # checksum
    assert largest_value_bytes(tmp_path / "index") == min(whole, MAX_RECORD_BYTES)
    index.check_integrity()
    assert len(index.apply([Remove(wanted.entry)], None)) == 1
    assert largest_value_bytes(tmp_path / "index") < 64
    index.close()


def largest_value_bytes(path: Path) -> int:
    """Over all databases. A process may open an index once, so another one looks."""
    done = subprocess.run([sys.executable, "-c", MEASURE, path], check=True, capture_output=True)
    return int(done.stdout)


MEASURE = """
import lmdb, sys
env = lmdb.open(sys.argv[1], readonly=True, max_dbs=4)
with env.begin() as txn:
    databases = [env.open_db(name, txn, create=False) for name, _ in txn.cursor()]
    print(max(len(value) for db in databases for _, value in txn.cursor(db)))
"""
READER = """
import lmdb, sys
env = lmdb.open(sys.argv[1], readonly=True, max_dbs=4)
txn = env.begin()
txn.stat()
print("reading", flush=True)
sys.stdin.read()
"""


def test_r65_killed_reader_does_not_keep_space(tmp_path: Path) -> None:
    index = NvmeIndex(tmp_path / "index", 64 * MIB, Storage())
    churn(index, rounds=range(1, 5), live=2000)
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, str(tmp_path / "index")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert reader.stdout is not None
    assert reader.stdout.readline() == b"reading\n"
    os.kill(reader.pid, signal.SIGKILL)
    reader.communicate()
    before = index.file_bytes()
    churn(index, rounds=range(5, 45), live=2000)
    assert index.file_bytes() <= 2 * before
    index.close()


def test_compression_saves_space_where_it_gains(open_tier: OpenTier) -> None:
    rig = open_tier()
    plain = [memoryview(bytes(range(256)) * 64)] * 4
    rig.put(b"k1", plain)
    assert rig.tier.stats().bytes_written < 16384
    assert rig.get(b"k1") == [bytes(extent) for extent in plain]
    before = rig.tier.stats().bytes_written
    rig.put(b"k2", content(b"k2", extent_bytes=16384))
    assert rig.tier.stats().bytes_written - before >= 3 * 16384
    rig = open_tier(compression="off")
    rig.put(b"k3", plain)
    assert rig.tier.stats().bytes_written >= 65536
    assert rig.get(b"k1") == rig.get(b"k3")

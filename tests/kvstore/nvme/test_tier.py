"""The tier's calls: write, locate, read, drop, clear, touch, entries."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from moontide.kvstore.errors import InvalidRequest
from moontide.kvstore.nvme import ExtentRead, NvmeEntry, NvmeSettings, NvmeWrite, region_bytes_for
from moontide.kvstore.nvme.notices import NOTICE_ENTRIES, Notices
from moontide.kvstore.nvme.operations import Outcome
from moontide.transfer import aligned_buffer, checksum

from .conftest import OpenTier
from .faults import FaultyStorage
from .rig import MIB, NAMESPACE, content, names


def test_what_was_written_is_read(open_tier: OpenTier) -> None:
    rig = open_tier()
    entries = names(0, 200)
    assert all(rig.put_many(entries))
    assert rig.hits(entries) == entries
    assert [entry.entry for entry in rig.stored] == entries
    assert rig.stored[0] == NvmeEntry(NAMESPACE, entries[0], b"parent", 3 * 4096)
    assert rig.tier.locate([b"absent"]) == [None]


def test_location_says_what_it_holds(open_tier: OpenTier) -> None:
    rig = open_tier()
    lengths = [4096, 100, 0, 8192]
    rig.put(b"k1", [memoryview(bytes(length)) for length in lengths])
    (found,) = rig.tier.locate([b"k1"])
    assert found is not None
    assert (found.length, found.num_extents) == (sum(lengths), 4)
    assert list(found.extent_lengths) == lengths
    assert (found.namespace, found.parent, found.entry) == (NAMESPACE, b"parent", b"k1")


@pytest.mark.parametrize("lengths", [[0], [1], [63, 65, 4095], [4096, 1, 4096], [300_000] * 2])
@pytest.mark.parametrize("shift", [0, 64])
def test_extents_of_any_length(open_tier: OpenTier, lengths: list[int], shift: int) -> None:
    rig = open_tier()
    source = random.Random(shift)
    data = [memoryview(source.randbytes(length)) for length in lengths]
    assert rig.put(b"s1", data, namespace="")
    (found,) = rig.tier.locate([b"s1"])
    assert found is not None
    buffers = [aligned_buffer(length + 64)[shift : shift + length] for length in lengths]
    results: list[object] = []
    requests = [ExtentRead(found, index, buffer) for index, buffer in enumerate(buffers)]
    assert rig.tier.read(requests[::-1], results.append)
    rig.wait(lambda: results)
    assert results == [[True] * len(lengths)]
    assert buffers == data


def test_entry_of_very_many_extents(open_tier: OpenTier) -> None:
    rig = open_tier(capacity_bytes=64 * MIB, region_bytes=8 * MIB)
    data = content(b"k1", extents=1000, extent_bytes=64)
    assert rig.put(b"k1", data)
    rig = open_tier(capacity_bytes=64 * MIB, region_bytes=8 * MIB)
    assert rig.get(b"k1") == [bytes(extent) for extent in data]
    assert rig.drop(b"k1")


def test_last_write_of_a_name_wins(open_tier: OpenTier) -> None:
    rig = open_tier()
    for version in range(3):
        assert rig.put(b"s1", [memoryview(bytes([version]) * 10)], namespace="")
        assert rig.get(b"s1") == [bytes([version]) * 10]
    assert rig.tier.stats().entries == 1


def test_dropped_entries_are_gone_at_once_and_for_good(open_tier: OpenTier) -> None:
    rig = open_tier()
    rig.put_many(names(0, 10))
    results: list[bool] = []
    assert rig.tier.drop([*names(0, 3), b"absent"], results.append)
    assert rig.tier.locate(names(0, 3)) == [None] * 3
    rig.wait(lambda: results)
    assert results == [True]
    assert sorted(entry.entry for entry in rig.removed) == names(0, 3)
    assert rig.listed() == set(names(3, 10))
    rig = open_tier()
    assert rig.listed() == set(names(3, 10))


def test_write_after_drop_is_there(open_tier: OpenTier) -> None:
    rig = open_tier()
    results: list[bool] = []
    rig.submit(b"k1", done=results.append)
    rig.tier.drop([b"k1"], results.append)
    rig.submit(b"k1", done=results.append)
    assert rig.tier.locate([b"k1"]) == [None]
    rig.wait(lambda: len(results) == 3)
    assert rig.hits([b"k1"]) == [b"k1"]
    assert open_tier().hits([b"k1"]) == [b"k1"]


def test_clear_of_a_namespace_leaves_the_others(open_tier: OpenTier) -> None:
    rig = open_tier()
    other = "cd" * 32
    for number in range(5):
        rig.put(b"k%d" % number)
        rig.put(b"x%d" % number, namespace=other)
        rig.put(b"s%d" % number, namespace="")
    results: list[bool] = []
    assert rig.tier.clear(other, results.append)
    assert rig.tier.locate([b"x1", b"k1"])[0] is None
    rig.wait(lambda: results)
    assert rig.removed == []
    assert {namespace for namespace, _ in rig.tier.entries()} == {NAMESPACE, ""}
    assert rig.put(b"x1", namespace=other)
    rig = open_tier()
    assert rig.hits([b"x0", b"x1", b"k1", b"s1"]) == [b"x1", b"k1", b"s1"]


def test_clear_of_all_leaves_nothing(open_tier: OpenTier) -> None:
    rig = open_tier()
    rig.put_many(names(0, 300))
    assert rig.clear(None)
    assert rig.tier.stats().entries == 0
    assert rig.tier.stats().regions == 0
    assert rig.listed() == set()
    assert rig.put(b"k1")
    assert open_tier().listed() == {b"k1"}


def test_clear_of_strings_tells_each(open_tier: OpenTier) -> None:
    """In pieces, between which whoever uses the tier does other things."""
    rig = open_tier()
    strings = names(0, 2500, "s")
    for entry in strings:
        rig.wait(lambda e=entry: rig.submit(e, [memoryview(e)], namespace=""))
    rig.put_many(names(0, 50))
    assert rig.clear("")
    assert {entry.entry for entry in rig.removed} == set(strings)
    assert rig.listed() == set(names(0, 50))
    assert rig.tier.locate(strings) == [None] * len(strings)


def test_notices_come_in_order_one_a_turn() -> None:
    posted: list[Callable[[], None]] = []
    taken: list[Outcome] = []
    notices = Notices(posted.append, taken.append)
    left = [NvmeEntry("", entry, b"", 1) for entry in names(0, 2 * NOTICE_ENTRIES + 1)]
    notices.put(Outcome(removed=list(left)))
    notices.put(Outcome(stored=left[:1]))
    while posted:
        assert len(posted) == 1
        posted.pop()()
    assert [len(each.removed) for each in taken] == [NOTICE_ENTRIES, NOTICE_ENTRIES, 1, 0]
    assert [entry for each in taken for entry in each.removed] == left
    assert taken[-1].stored == left[:1]


def test_entries_lists_each_once_by_namespace(open_tier: OpenTier) -> None:
    rig = open_tier()
    rig.put_many(names(0, 1050))
    rig.put(b"s1", namespace="")
    groups = list(rig.tier.entries())
    assert sum(len(entries) for _, entries in groups) == 1051
    assert rig.listed() == {*names(0, 1050), b"s1"}
    assert [entries for namespace, entries in groups if namespace == ""] == [[b"s1"]]


def test_flush_says_whether_all_was_stored(open_tier: OpenTier) -> None:
    rig = open_tier()
    rig.submit(b"k1")
    assert rig.flush()
    assert rig.stored
    rig.submit(b"big", [memoryview(bytes(2 * MIB))])
    assert not rig.flush()
    assert rig.flush()
    assert rig.tier.stats().failed_writes == 1


def test_full_queue_refuses_at_once(open_tier: OpenTier) -> None:
    rig = open_tier(queue_entries=4, queue_bytes=MIB)
    taken = [rig.submit(entry) for entry in names(0, 1000)]
    assert False in taken
    assert rig.tier.stats().refused_writes == taken.count(False)
    rig.wait(lambda: len(rig.stored) == taken.count(True))
    assert rig.flush()


def test_what_is_removed_is_hidden_at_once_however_many_writes_wait(open_tier: OpenTier) -> None:
    disk_answers = threading.Event()
    storage = FaultyStorage(lambda point: disk_answers.wait(10) and None)
    rig = open_tier(storage=storage, queue_entries=4)
    rig.put(b"dropped", [memoryview(bytes(64))])
    rig.put(b"cleared", [memoryview(bytes(64))])
    storage.armed = True
    while rig.submit(b"fills the queue"):
        pass
    ended: list[bool] = []
    assert rig.tier.drop([b"dropped"], ended.append)
    assert rig.tier.holds([b"dropped", b"cleared"]) == [False, True]
    assert rig.tier.clear(None, ended.append)
    assert rig.tier.holds([b"dropped", b"cleared"]) == [False, False]
    disk_answers.set()
    rig.wait(lambda: len(ended) == 2)
    assert ended == [True, True]


def test_read_queue_takes_one_large_batch_and_refuses_the_next(open_tier: OpenTier) -> None:
    disk_answers = threading.Event()
    storage = FaultyStorage(lambda point: disk_answers.wait(10) and None)
    rig = open_tier(storage=storage)
    rig.put(b"k1", [memoryview(bytes(64))])
    storage.armed = True
    (found,) = rig.tier.locate([b"k1"])
    assert found is not None
    large = [ExtentRead(found, 0, aligned_buffer(4096)[:64])] * 17_000
    results: list[object] = []
    assert rig.tier.read(large, results.append)
    assert not rig.tier.read(large[:1], results.append)
    disk_answers.set()
    rig.wait(lambda: results)
    assert results == [[True] * 17_000]
    assert rig.tier.read(large[:1], results.append)
    rig.wait(lambda: len(results) == 2)


def test_empty_read_is_done(open_tier: OpenTier) -> None:
    rig = open_tier()
    results: list[object] = []
    assert rig.tier.read([], results.append)
    rig.wait(lambda: results)
    assert results == [[]]


def test_wrong_destination_is_refused(open_tier: OpenTier) -> None:
    rig = open_tier()
    rig.put(b"k1")
    (found,) = rig.tier.locate([b"k1"])
    assert found is not None
    with pytest.raises(InvalidRequest, match="destination of 4095 bytes for extent 1 of 4096"):
        rig.tier.read([ExtentRead(found, 1, aligned_buffer(4096)[:4095])], lambda _: None)


def test_close_finishes_what_is_queued(open_tier: OpenTier) -> None:
    rig = open_tier()
    results: list[bool] = []
    for entry in names(0, 100):
        assert rig.submit(entry, done=results.append)
    rig.close()
    assert results == [True] * 100
    assert len(open_tier().listed()) == 100


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"entry": b""}, "0 entry id bytes"),
        ({"entry": bytes(1201)}, "1201 entry id bytes"),
        ({"extents": []}, "0 extents"),
        ({"checksums": [1, 2]}, "2 checksums"),
        ({"element_bytes": 0}, "0 element_bytes"),
    ],
)
def test_impossible_writes_are_refused(wrong: dict[str, object], message: str) -> None:
    good: dict[str, object] = {
        "entry": b"k",
        "namespace": "",
        "parent": b"",
        "extents": [memoryview(b"x")],
        "checksums": [1],
    }
    with pytest.raises(InvalidRequest, match=message):
        NvmeWrite(**{**good, **wrong})  # type: ignore[arg-type]  # that is the point


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"capacity_bytes": 1 << 20}, "needs at least"),
        ({"region_bytes": 100_000}, "multiple of 4096"),
        ({"region_bytes": 4096}, "region_bytes is 4096"),
        ({"compression": "lz4"}, "known: auto, off"),
        ({"max_entries": 0}, "max_entries is 0"),
    ],
)
def test_impossible_settings_are_refused(
    tmp_path: Path, wrong: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        NvmeSettings(**{"directory": tmp_path, "capacity_bytes": 64 * MIB, **wrong})  # type: ignore[arg-type]  # that is the point


def test_default_regions_follow_capacity_and_largest_entry() -> None:
    assert region_bytes_for(64 * MIB) == 8 * MIB
    assert region_bytes_for(1 << 40, 64 * MIB) > 64 * MIB
    assert region_bytes_for(1 << 34) == 64 * MIB
    assert (1 << 42) // region_bytes_for(1 << 42) == 256  # each region is an open file


def test_what_is_held_is_what_is_located(open_tier: OpenTier) -> None:
    """The quick answer agrees with the thorough one in every state an entry can be in."""
    rig = open_tier()
    rig.put_many(names(0, 20))
    rig.put_many(names(0, 2))  # replaced
    rig.drop(*names(2, 5))
    assert rig.submit(names(5, 6)[0])
    asked = names(0, 30)

    def agree() -> list[bool]:
        held = rig.tier.holds(asked)
        assert held == [location is not None for location in rig.tier.locate(asked)]
        return held

    assert agree() == [True] * 2 + [False] * 4 + [True] * 14 + [False] * 10
    rig.flush()
    cleared: list[bool] = []
    assert rig.tier.clear(NAMESPACE, cleared.append)
    assert not any(agree())
    rig.wait(lambda: cleared)
    rig.put_many(names(20, 25))
    assert agree() == [False] * 20 + [True] * 5 + [False] * 5


@pytest.mark.parametrize("extent_bytes", [100, 4096, 1 << 17])
def test_extents_that_nobody_summed_are_summed_on_their_way_to_disk(
    open_tier: OpenTier, extent_bytes: int
) -> None:
    rig = open_tier()
    data = content(b"k1", extent_bytes=extent_bytes)
    told = [0, checksum(data[1]), 0]
    stored: list[bool] = []
    assert rig.tier.write(NvmeWrite(b"k1", NAMESPACE, b"", data, told), stored.append)
    rig.hurry()
    rig.wait(lambda: stored)
    (location,) = rig.tier.locate([b"k1"])
    assert location is not None
    assert list(location.checksums) == [checksum(extent) for extent in data]
    assert rig.get(b"k1") == [bytes(extent) for extent in data]


def test_looking_into_the_index_writes_to_no_file(open_tier: OpenTier, tmp_path: Path) -> None:
    """So calls go on while the disk takes no writes (fsfreeze): a store to a page that is mapped
    from a file would wait for it."""
    rig = open_tier()
    assert all(rig.put_many(names(0, 20)))
    assert rig.hits(names(0, 20)) == names(0, 20)
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line]
    ours = [line for line in mapped if str(tmp_path) in line]
    assert ours, "the index is mapped"
    assert not [line for line in ours if "w" in line.split()[1]]
    assert [path.name for path in (tmp_path / "nvme").rglob("*lock*")] in ([], ["lock"])

"""Reserve, advance, commit, abort: what is visible when, and who wins."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from moontide.kvstore.errors import InvalidRequest
from moontide.kvstore.keys import BlockKey, EntryId, string_entry_id
from moontide.kvstore.slots import SlotReader
from moontide.kvstore.store import LayerRun, PoolSettings
from moontide.kvstore.types import PutResult, PutStatus, ReserveStatus
from moontide.transfer import Mapping, checksum
from moontide.transfer.types import Instance

from .conftest import LAYOUT, SEGMENT_BYTES, MakeNode, Node, namespace_named

Chain = Callable[..., list[BlockKey]]


def test_entry_is_invisible_until_commit(node: Node) -> None:
    owner = node.connect()
    reserved = node.reserve(owner, "a", 5)
    assert node.get(owner, "a") is None
    assert node.commit(owner, reserved, b"hello").status is PutStatus.STORED
    assert node.get(owner, "a") == b"hello"


def test_entry_of_no_bytes(node: Node) -> None:
    owner = node.connect()
    node.put(owner, "empty", b"")
    assert node.get(owner, "empty") == b""


def test_first_commit_wins(node: Node) -> None:
    first, second = node.connect(), node.connect()
    one, two = node.reserve(first, "a", 3), node.reserve(second, "a", 3)
    assert node.commit(second, two, b"two").status is PutStatus.STORED
    assert node.commit(first, one, b"one").status is PutStatus.EXISTS
    assert node.get(first, "a") == b"two"
    node.check_idle(entries=1)


def test_keep_and_error_find_a_committed_entry(node: Node) -> None:
    owner = node.connect()
    node.put(owner, "a", b"old")
    assert node.put(owner, "a", b"new") is ReserveStatus.EXISTS
    assert node.put(owner, "a", b"new", if_exists="error") is ReserveStatus.EXISTS
    assert node.get(owner, "a") == b"old"


def test_replace_becomes_visible_at_commit(node: Node) -> None:
    owner = node.connect()
    node.put(owner, "a", b"old")
    (before,), _ = node.store.lookup(owner, [string_entry_id("a")], None, node.now)
    node.put(owner, "a", b"newer", if_exists="replace")
    assert node.get(owner, "a") == b"newer"
    assert before is not None
    with pytest.raises(InvalidRequest, match="generation"):
        node.store.buffer(before.slot, before.generation)
    node.check_idle(entries=1)


def test_same_key_twice_in_one_commit(node: Node) -> None:
    owner = node.connect()
    for mode, expected in (("keep", b"1"), ("replace", b"2")):
        key = string_entry_id(mode)
        one, two = node.store.reserve(
            owner,
            [key, key],
            [1, 1],
            if_exists=mode,  # type: ignore[arg-type]  # one of the names
            now=node.now,
        )
        node.fill(one, b"1")
        node.fill(two, b"2")
        node.store.commit(
            owner,
            [one.slot, two.slot],
            [one.generation, two.generation],
            [checksum(b"1"), checksum(b"2")],
            node.now,
        )
        assert node.get(owner, mode) == expected
    node.check_idle(entries=2)


def test_aborted_space_is_free_at_once(make_node: MakeNode) -> None:
    node = make_node(max_reserved_ratio=1.0)
    owner = node.connect()
    held = [node.reserve(owner, f"k{index}", SEGMENT_BYTES) for index in range(8)]
    assert node.reserve(owner, "more", 1).status is ReserveStatus.FULL
    slots, generations = [r.slot for r in held], [r.generation for r in held]
    assert node.store.abort(owner, slots, generations) == 8
    assert node.reserve(owner, "more", SEGMENT_BYTES).status is ReserveStatus.RESERVED


def test_r19_refused_puts_are_told_apart_and_counted(node: Node) -> None:
    others = node.connect(), node.connect()
    for index in range(5):
        node.reserve(others[index % 2], f"other{index}", SEGMENT_BYTES)
    owner = node.connect()
    results = node.store.reserve(
        owner,
        [string_entry_id(f"k{index}") for index in range(5)],
        [SEGMENT_BYTES] * 4 + [SEGMENT_BYTES + 1],
        now=node.now,
    )
    statuses = [result.status for result in results]
    assert statuses == [
        *[ReserveStatus.RESERVED] * 3,
        ReserveStatus.FULL,
        ReserveStatus.FAILED,
    ]
    assert f"{8 * SEGMENT_BYTES} reserved" in results[3].reason
    assert str(SEGMENT_BYTES) in results[4].reason
    assert node.store.stats(node.now).refused_puts == 1


def test_header_slot_tells_a_reader_what_it_copied(node: Node) -> None:
    owner = node.connect()
    store = node.store
    reader = SlotReader(node.slot_table())
    reserved = node.reserve(owner, "a", 3)
    assert not reader.is_current(reserved.slot, reserved.generation)
    node.commit(owner, reserved, b"abc")
    assert reader.is_current(reserved.slot, reserved.generation)
    segment = Mapping(os.dup(store.readable_descriptor(reserved.segment)), SEGMENT_BYTES)
    assert segment.buffer[reserved.offset : reserved.offset + 3] == b"abc"
    store.remove([string_entry_id("a")], node.now)
    assert not reader.is_current(reserved.slot, reserved.generation)
    again = node.reserve(owner, "b", 3)
    assert (again.slot, again.generation) == (reserved.slot, reserved.generation + 1)


def test_layers_complete_in_order(node: Node, chain: Chain) -> None:
    owner = node.connect()
    namespace = node.store.open_namespace(namespace_named("w"))
    (reserved,) = node.reserve_blocks(owner, namespace, chain(1), LAYOUT.whole())
    where = ([reserved.slot], [reserved.generation])
    with pytest.raises(InvalidRequest, match=r"extent 1 .* next is 0 of 3"):
        node.store.advance(owner, *where, 1, [7])
    for layer in range(2):
        node.write_layer(owner, [reserved], layer)
    assert len(node.store.extents(reserved.slot, reserved.generation)) == 2
    (put,) = node.store.commit(owner, *where, [], node.now)
    assert put == PutResult(PutStatus.FAILED, "extent 2 of 3 is not written")
    node.write_layer(owner, [reserved], 2)
    with pytest.raises(InvalidRequest, match="next is 3 of 3"):
        node.store.advance(owner, *where, 3, [7])
    (put,) = node.store.commit(owner, *where, [], node.now)
    assert put.status is PutStatus.STORED
    extents = node.store.extents(reserved.slot, reserved.generation)
    data = node.store.buffer(reserved.slot, reserved.generation)
    for extent in extents:
        assert checksum(data[extent.offset : extent.offset + extent.length]) == extent.checksum


def test_layer_watchers_are_called_once(node: Node, chain: Chain) -> None:
    owner = node.connect()
    namespace = node.store.open_namespace(namespace_named("w"))
    one, two = node.reserve_blocks(owner, namespace, chain(2), LAYOUT.whole())
    seen: list[tuple[str, bool]] = []

    def watch(name: str, reserved: object, extent: int) -> Callable[[], None]:
        return node.store.watch_extent(
            reserved.slot,  # type: ignore[attr-defined]  # a ReserveResult
            reserved.generation,  # type: ignore[attr-defined]  # a ReserveResult
            extent,
            lambda ok: seen.append((name, ok)),
        )

    watch("first", one, 0)
    watch("last", one, 2)
    watch("cancelled", one, 1)()
    watch("aborted", two, 0)
    node.write_layer(owner, [one], 0)
    assert seen == [("first", True)]
    watch("late", one, 0)
    node.store.abort(owner, [two.slot], [two.generation])
    node.write_layer(owner, [one], 1)
    node.write_layer(owner, [one], 2)
    watch("gone", two, 0)
    assert seen[1:] == [("late", True), ("aborted", False), ("last", True), ("gone", False)]


def test_runs_of_layers_move_together_or_not_at_all_and_are_told_layer_by_layer(
    node: Node, chain: Chain
) -> None:
    owner = node.connect()
    namespace = node.store.open_namespace(namespace_named("w"))
    reserved = node.reserve_blocks(owner, namespace, chain(2), LAYOUT.whole())
    seen: list[tuple[int, int]] = []
    for number, each in enumerate(reserved):
        for extent in range(3):
            note = (extent, number)
            node.store.watch_extent(
                each.slot, each.generation, extent, lambda _, note=note: seen.append(note)
            )
    first, second = ((each.slot, each.generation) for each in reserved)
    run = LayerRun(*first, 0, [11, 12])
    for wrong in (LayerRun(*second, 1, [22]), LayerRun(*second, 0, [21, 22, 23, 24])):
        with pytest.raises(InvalidRequest, match="next is 0 of 3"):
            node.store.advance_runs(owner, [run, wrong])
    assert (seen, node.store.extents(*first)) == ([], [])
    node.store.advance_runs(owner, [run, LayerRun(*second, 0, [21])])
    node.store.advance_runs(owner, [LayerRun(*second, 1, [22, 23])])
    assert seen == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 1)]
    sums = [[extent.checksum for extent in node.store.extents(*each)] for each in (first, second)]
    assert sums == [[11, 12], [21, 22, 23]]


def test_r16_notices_of_unknown_reservations_are_counted_and_harmless(node: Node) -> None:
    owner, other = node.connect(), node.connect()
    reserved = node.reserve(owner, "a", 3)
    slot, generation = reserved.slot, reserved.generation
    forged = [(slot, generation + 1), (slot, 0), (0, 0), (-1, 1), (1 << 40, 1), (99, 1)]
    for bad_slot, bad_generation in forged:
        (put,) = node.store.commit(owner, [bad_slot], [bad_generation], [1], node.now)
        assert put.status is PutStatus.FAILED
        assert node.store.abort(owner, [bad_slot], [bad_generation]) == 0
        with pytest.raises(InvalidRequest):
            node.store.advance(owner, [bad_slot], [bad_generation], 0, [1])
        with pytest.raises(InvalidRequest):
            node.store.buffer(bad_slot, bad_generation)
    assert node.store.commit(other, [slot], [generation], [1], node.now)[0].status is (
        PutStatus.FAILED
    )
    assert node.commit(owner, reserved, b"abc").status is PutStatus.STORED
    (again,) = node.store.commit(owner, [slot], [generation], [1], node.now)
    assert again.status is PutStatus.FAILED
    assert node.store.abort(owner, [slot], [generation]) == 0
    assert node.get(owner, "a") == b"abc"
    assert node.store.stats(node.now).stale_notices == 3 * len(forged) + 3


def test_entry_ends_with_its_time_to_live(node: Node) -> None:
    owner = node.connect()
    node.put(owner, "short", b"x", ttl_s=2.0)
    node.put(owner, "long", b"x", ttl_s=20.0)
    node.now += 1.9
    assert node.has("short", "long") == [True, True]
    node.now += 0.2
    assert node.has("short", "long") == [False, True]
    assert node.store.stats(node.now).tiers["dram"].expirations == 1
    node.put(owner, "long", b"y", if_exists="replace")
    node.now += 30
    node.store.expire(node.now)
    assert node.get(owner, "long") == b"y"


def test_a_time_to_live_goes_on_while_the_machine_sleeps_and_a_ticket_s_does_not(
    node: Node,
) -> None:
    owner = node.connect()
    node.store.count_suspended(3600.0)  # before
    node.put(owner, "short", b"x", ttl_s=2.0)
    node.put(owner, "long", b"x", ttl_s=20.0)
    ticket = node.pin(owner, "long", 5.0)
    assert node.has("short", "long") == [True, True]
    node.store.count_suspended(3610.0)
    assert node.has("short", "long") == [False, True]
    node.store.expire(node.now)
    node.store.unpin(owner, ticket)
    node.now += 10
    assert node.has("long") == [False]


BAD_CALLS: dict[str, tuple[dict[str, object], str]] = {
    "sizes": ({"sizes": [1, 2]}, "1 entries with 2 sizes"),
    "negative size": ({"sizes": [-1]}, "-1 bytes"),
    "kv id": ({"entries": [EntryId(b"k" + bytes(25))]}, "not a string entry id"),
    "no key": ({"entries": [EntryId(b"s")]}, "not a string entry id"),
    "long key": ({"entries": [EntryId(b"s" + bytes(1025))]}, "1026 bytes"),
    "mode": ({"if_exists": "maybe"}, "keep, replace, error"),
    "no time": ({"ttl_s": 0.0}, "ttl_s is 0.0"),
    "not a time": ({"ttl_s": float("nan")}, "ttl_s is nan"),
    "stranger": ({"owner": 99}, "owner 99 is not connected"),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_reserve_names_what_is_wrong(node: Node, name: str) -> None:
    changes, message = BAD_CALLS[name]
    arguments: dict[str, object] = {
        "owner": node.connect(),
        "entries": [string_entry_id("a")],
        "sizes": [1],
        "now": node.now,
    }
    with pytest.raises(InvalidRequest, match=message):
        node.store.reserve(**(arguments | changes))  # type: ignore[arg-type]  # wrong on purpose
    node.check_idle(entries=0)


def test_checksums_out_of_range_change_nothing(node: Node) -> None:
    owner = node.connect()
    reserved = node.reserve(owner, "a", 1)
    for bad in (-1, 1 << 64):
        with pytest.raises(InvalidRequest, match="checksum"):
            node.store.commit(owner, [reserved.slot], [reserved.generation], [bad], node.now)
    with pytest.raises(InvalidRequest, match="give as many"):
        node.store.commit(owner, [reserved.slot], [reserved.generation], [1, 2], node.now)
    assert node.commit(owner, reserved, b"x").status is PutStatus.STORED


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dram_bytes": 100}, "dram_bytes is 100"),
        ({"segment_bytes": 1000}, "multiple of 4096"),
        ({"max_entries": 0}, "max_entries is 0"),
        ({"eviction": "mru"}, "slru, lru"),
        ({"protected_ratio": 1.5}, "protected_ratio is 1.5"),
        ({"max_pin_ratio": -1.0}, "max_pin_ratio is -1.0"),
    ],
)
def test_bad_settings_name_value_and_bound(changes: dict[str, object], message: str) -> None:
    good = {"dram_bytes": 1 << 20, "segment_bytes": 1 << 16, "max_entries": 10}
    with pytest.raises(InvalidRequest, match=message):
        PoolSettings(**(good | changes))  # type: ignore[arg-type]  # wrong on purpose


def test_corrupt_entry_is_dropped_when_reported(node: Node, chain: Chain) -> None:
    owner = node.connect()
    namespace = node.store.open_namespace(namespace_named("w"))
    keys = chain(2)
    good, bad = node.put_blocks(owner, namespace, keys, LAYOUT.whole())
    node.store.buffer(bad.slot, bad.generation)[5] ^= 0xFF
    assert not node.store.report_corrupt(good.slot, good.generation)
    assert node.store.report_corrupt(bad.slot, bad.generation)
    assert not node.store.report_corrupt(bad.slot, bad.generation)
    assert node.prefix(owner, namespace, keys) == 1
    assert node.store.stats(node.now).tiers["dram"].corrupt == 1


def test_connection_that_ends_gives_its_space_back(node: Node) -> None:
    owner = node.connect()
    for index in range(8):
        node.reserve(owner, f"k{index}", SEGMENT_BYTES)
    node.store.disconnect(owner)
    node.store.disconnect(owner)
    node.check_idle(entries=0)


def test_r14_largest_put_succeeds_after_overload(make_node: MakeNode) -> None:
    node = make_node(max_pin_ratio=1.0)
    owners = [node.connect(Instance.new("client")) for _ in range(4)]
    for index in range(400):
        owner = owners[index % 4]
        node.reserve(owner, f"r{index}", 7000 + index)
        node.put(owner, f"p{index}", bytes(1 + 97 * index % 9000))
        if index % 3 == 0:
            node.pin(owner, f"p{index}", 5.0)
    assert node.store.stats(node.now).refused_puts > 0
    for owner in owners:
        node.store.disconnect(owner)
    node.now += 5.1
    node.store.expire(node.now)
    node.check_idle()
    owner = node.connect()
    assert node.put(owner, "largest", bytes(SEGMENT_BYTES)) is ReserveStatus.RESERVED

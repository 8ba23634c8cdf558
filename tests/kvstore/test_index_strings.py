"""String entries in the index, and prefixes for a part of the layout."""

from __future__ import annotations

import random

import pytest

from moontide.kvstore.errors import InvalidRequest
from moontide.kvstore.events import EventKind, KvEvent, SnapshotBegin
from moontide.kvstore.index import PrefixIndex
from moontide.kvstore.keys import BlockKey, EntryId, kv_entry_id, string_entry_id
from moontide.kvstore.layout import Group, KVLayout, Shard

LAYOUT = KVLayout((Group("full", 2, 4, 8, "float16"),))
LEFT, RIGHT = Shard(0, (0, 2), (0, 2)), Shard(0, (0, 2), (2, 4))
NODES = ("a/1/" + "aa" * 16, "b/2/" + "bb" * 16)
NAMESPACE = "cc" * 32


def event(
    node: str, seq: int, entries: list[EntryId], kind: EventKind = "stored", namespace: str = ""
) -> KvEvent:
    told = tuple(entry.hex() for entry in entries)
    return KvEvent(
        seq=seq, kind=kind, instance=node, tier="dram", namespace=namespace, entries=told
    )


def followed(**bounds: int) -> PrefixIndex:
    index = PrefixIndex(**bounds)
    for node in NODES:
        index.begin(node, SnapshotBegin(node, 0))
        index.live(node, 0)
    return index


def test_holders_follow_random_stores_and_removals() -> None:
    index, rng = followed(max_strings=1000), random.Random(7)
    keys = [string_entry_id(f"key {number}") for number in range(20)]
    held: dict[str, set[EntryId]] = {node: set() for node in NODES}
    seqs = dict.fromkeys(NODES, 0)
    for _ in range(300):
        node, some = rng.choice(NODES), rng.sample(keys, rng.randint(1, 5))
        kind: EventKind = rng.choice(("stored", "removed"))
        seqs[node] += 1
        index.apply(node, event(node, seqs[node], some, kind))
        held[node] = held[node] | set(some) if kind == "stored" else held[node] - set(some)
        index.check_integrity()
    for key in keys:
        expected = {(node, "dram") for node in NODES if key in held[node]}
        assert set(index.holders(key)) == expected
    index.drop_stream(NODES[0])
    index.check_integrity()
    assert all((NODES[0], "dram") not in index.holders(key) for key in keys)


def test_cleared_ends_strings_too() -> None:
    index = followed(max_strings=10)
    key = string_entry_id("x")
    for node in NODES:
        index.apply(node, event(node, 1, [key]))
    index.apply(NODES[0], event(NODES[0], 2, [], "cleared"))
    assert index.holders(key) == [(NODES[1], "dram")]


def test_a_full_index_only_misses_and_none_are_kept_unless_asked_for() -> None:
    keys = [string_entry_id(f"{number}") for number in range(10)]
    for bound, kept in ((4, 4), (0, 0)):
        index = followed(max_strings=bound)
        index.apply(NODES[0], event(NODES[0], 1, keys))
        assert sum(bool(index.holders(key)) for key in keys) == kept
        index.check_integrity()


def test_a_string_that_is_not_hex_is_refused() -> None:
    index = followed(max_strings=4)
    bad = KvEvent(seq=1, kind="stored", instance=NODES[0], tier="dram", entries=("73zz",))
    with pytest.raises(InvalidRequest, match="not hex"):
        index.apply(NODES[0], bad)


def test_a_prefix_for_one_part_of_the_layout() -> None:
    index = followed()
    keys = [BlockKey(bytes([number]) * 16) for number in range(4)]
    lefts = [kv_entry_id(key, LEFT) for key in keys]
    index.apply(NODES[0], event(NODES[0], 1, lefts, namespace=NAMESPACE))
    assert index.longest_prefix(NAMESPACE, keys, LAYOUT) == {}
    match = index.longest_prefix(NAMESPACE, keys, LAYOUT, (LEFT,))[NODES[0]]
    assert match.num_blocks == 4
    assert index.longest_prefix(NAMESPACE, keys, LAYOUT, (RIGHT,)) == {}

"""Who goes first in a store: ends of chains, soft pins. Windows: test_windows.py. The policies' own
order: test_eviction_policies.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from moontide.kvstore.keys import BlockKey
from moontide.kvstore.store.placement import MAX_SCATTERED_VICTIMS
from moontide.kvstore.types import ReserveStatus

from .conftest import LAYOUT, SEGMENT_BYTES, MakeNode, Node, entry_of, namespace_named

HALF = SEGMENT_BYTES // 2
Chain = Callable[..., list[BlockKey]]


def test_eviction_makes_room_for_the_newest(node: Node) -> None:
    owner = node.connect()
    for index in range(40):
        assert node.put(owner, f"k{index}", bytes(HALF)) is ReserveStatus.RESERVED
    there = node.has(*(f"k{index}" for index in range(40)))
    assert there == [False] * 24 + [True] * 16
    assert node.store.stats(node.now).tiers["dram"].evictions == 24


def test_entry_hit_often_stays(node: Node) -> None:
    owner = node.connect()
    node.put(owner, "hot", bytes(HALF))
    for index in range(40):
        assert node.get(owner, "hot") is not None
        node.put(owner, f"k{index}", bytes(HALF))
    assert node.has("hot", "k0") == [True, False]


def test_soft_pinned_entry_outlives_newer_ones(node: Node) -> None:
    owner = node.connect()
    node.put(owner, "soft", bytes(HALF), soft_pin=True)
    for index in range(40):
        node.put(owner, f"k{index}", bytes(HALF))
    assert node.has("soft") == [True]


def test_scattered_small_entries_give_way_to_a_large_one(node: Node) -> None:
    owner = node.connect()
    for index in range(8 * SEGMENT_BYTES // 64 + 100):
        node.put(owner, f"small{index}", b"x")
    before = node.store.stats(node.now).tiers["dram"].entries
    assert node.put(owner, "large", bytes(SEGMENT_BYTES)) is ReserveStatus.RESERVED
    after = node.store.stats(node.now).tiers["dram"].entries
    assert before - after <= SEGMENT_BYTES // 64 + MAX_SCATTERED_VICTIMS
    node.check()


def test_entry_limit_evicts_the_coldest(make_node: MakeNode) -> None:
    node = make_node(max_entries=100)
    owner = node.connect()
    for index in range(150):
        assert node.put(owner, f"k{index}", b"x") is ReserveStatus.RESERVED
    there = node.has(*(f"k{index}" for index in range(150)))
    assert sum(there) == 100
    assert all(there[-50:])


@pytest.mark.parametrize("one_by_one", [True, False])
def test_chain_shrinks_from_its_end(make_node: MakeNode, chain: Chain, one_by_one: bool) -> None:
    node = make_node(eviction="lru")
    owner = node.connect()
    namespace = node.store.open_namespace(namespace_named("w"))
    keys = chain(20)
    if one_by_one:
        for index, key in enumerate(keys):
            node.now += 1
            parent = keys[index - 1] if index else b""
            node.put_blocks(owner, namespace, [key], LAYOUT.whole(), parent=parent)
    else:
        node.put_blocks(owner, namespace, keys, LAYOUT.whole())
    (whole,) = LAYOUT.whole()
    lengths = [node.prefix(owner, namespace, keys)]
    index = 0
    while lengths[-1]:
        node.put(owner, f"s{index}", bytes(HALF))
        index += 1
        there = node.store.exists([entry_of(key, whole) for key in keys], node.now)
        assert there == sorted(there, reverse=True), "a hole in the chain"
        lengths.append(sum(there))
    assert lengths[0] == 20


def test_chain_that_grows_keeps_its_root(make_node: MakeNode, chain: Chain) -> None:
    """A conversation whose blocks come one by one is as young as its last block."""
    node = make_node(eviction="lru")
    owner = node.connect()
    namespace = node.store.open_namespace(namespace_named("w"))
    old, live = chain(3, "old"), chain(30, "live")
    node.put_blocks(owner, namespace, live[:1], LAYOUT.whole())
    node.put_blocks(owner, namespace, old, LAYOUT.whole())
    for index in range(1, 30):
        node.now += 1
        node.put_blocks(owner, namespace, [live[index]], LAYOUT.whole(), parent=live[index - 1])
    (whole,) = LAYOUT.whole()
    while all(node.store.exists([entry_of(key, whole) for key in old], node.now)):
        node.now += 1
        node.put(owner, f"s{node.now}", bytes(1536))
    assert all(node.store.exists([entry_of(key, whole) for key in live], node.now))


@pytest.mark.parametrize("policy", ["lru", "slru", "cost_aware"])
def test_late_writes_go_by_the_order_of_eviction(make_node: MakeNode, policy: str) -> None:
    node = make_node(eviction=policy)
    owner = node.connect()
    slots = []
    for index in range(8):
        reserved = node.reserve(owner, f"k{index}", 64)
        node.commit(owner, reserved, bytes(64))
        slots.append(reserved.slot)
    node.get(owner, "k0")
    node.pin(owner, "k1")
    coldest = node.store.unflushed_of_coldest(0.5, 10)
    assert [entry.slot for entry in coldest] == slots[2:6]
    node.store.mark_flushed(coldest[0].slot, coldest[0].generation)
    left = node.store.unflushed_of_coldest(0.5, 10)
    assert [entry.slot for entry in left] == slots[3:6]
    assert len(node.store.unflushed_of_coldest(1.0, 2)) == 2

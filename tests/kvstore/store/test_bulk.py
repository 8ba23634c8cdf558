"""Many entries that end at once: right accounts, and a bounded part of the loop's time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from moontide.kvstore.keys import BlockKey, string_entry_id
from moontide.kvstore.store import EvictScope, entries, placement
from moontide.kvstore.types import PutStatus, ReserveStatus

from .conftest import LAYOUT, SEGMENT_BYTES, MakeNode, Node, namespace_named

Chain = Callable[..., list[BlockKey]]

COUNT, BATCH = 900, 300


def put_tiny(node: Node, owner: int, count: int, *, ttl_s: float | None = None) -> list[str]:
    """Entries of 16 bytes."""
    names = [f"tiny{index}" for index in range(count)]
    for start in range(0, count, BATCH):
        entries = [string_entry_id(name) for name in names[start : start + BATCH]]
        sizes = [16] * len(entries)
        reserved = node.store.reserve(owner, entries, sizes, ttl_s=ttl_s, now=node.now)
        slots, generations = [got.slot for got in reserved], [got.generation for got in reserved]
        results = node.store.commit(owner, slots, generations, [7] * len(slots), node.now)
        assert all(result.status is PutStatus.STORED for result in results)
    return names


def test_a_large_value_takes_the_place_of_many_tiny_ones(make_node: MakeNode) -> None:
    node = make_node(dram_bytes=SEGMENT_BYTES)
    owner = node.connect()
    names = put_tiny(node, owner, COUNT)
    node.pin(owner, names[0])
    assert node.reserve(owner, "large", SEGMENT_BYTES - 8192).status is ReserveStatus.RESERVED
    node.check()
    left = node.has(*names)
    assert left[0]
    assert sum(left) < 200
    assert node.store.stats(node.now).tiers["dram"].evictions == COUNT - sum(left)


def test_bulk_eviction_of_blocks_leaves_chains_whole(make_node: MakeNode, chain: Chain) -> None:
    node = make_node(dram_bytes=SEGMENT_BYTES)
    owner = node.connect()
    namespace = node.store.open_namespace(namespace_named("bulk"))
    previous = b""
    keys: list[BlockKey] = []
    for start in range(0, 300, 20):
        part = chain(20, f"{start}-")
        node.put_blocks(owner, namespace, part, LAYOUT.whole(), parent=previous)
        previous, keys = part[-1], [*keys, *part]
    node.check()
    assert sum(node.store.evict(EvictScope(), node.now).carry_out()) > 0
    node.check_idle(entries=0)
    node.put_blocks(owner, namespace, keys[:20], LAYOUT.whole())
    assert node.prefix(owner, namespace, keys) == 20


def test_one_request_evicts_a_bounded_number(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it evicted stays evicted: tried again, the request finds room."""
    monkeypatch.setattr(placement, "MAX_VICTIMS", 300)
    node = make_node(dram_bytes=SEGMENT_BYTES)
    owner = node.connect()
    put_tiny(node, owner, COUNT)
    statuses = []
    while not statuses or statuses[-1] is ReserveStatus.FULL:
        before = node.store.stats(node.now).tiers["dram"].evictions
        statuses.append(node.reserve(owner, "large", SEGMENT_BYTES).status)
        after = node.store.stats(node.now).tiers["dram"].evictions
        assert after - before <= 300 + placement.MAX_SCATTERED_VICTIMS
        node.now += 0.1
        node.check()
        assert len(statuses) < 5
    assert statuses[-1] is ReserveStatus.RESERVED


def test_entries_past_their_time_are_misses_however_many_there_are(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "MAX_EXPIRED_AT_ONCE", 300)
    owner = node.connect()
    names = put_tiny(node, owner, COUNT, ttl_s=1.0)
    racer = node.reserve(owner, names[6], 16)
    assert racer.status is ReserveStatus.EXISTS
    node.now += 2
    assert node.store.expire(node.now)
    node.check()
    assert not any(node.has(*names[-10:]))
    assert node.get(owner, names[-11]) is None
    assert node.store.remove([string_entry_id(names[-12])], node.now) == 0
    assert node.put(owner, names[-13], b"again") is ReserveStatus.RESERVED
    assert node.get(owner, names[-13]) == b"again"
    rounds = 1
    while node.store.expire(node.now):
        rounds += 1
    assert rounds == 2
    node.check_idle(entries=1)
    assert node.store.stats(node.now).tiers["dram"].expirations == COUNT


def test_an_expired_value_does_not_win_over_a_new_one(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "MAX_EXPIRED_AT_ONCE", 0)
    owner = node.connect()
    new = node.reserve(owner, "a", 3)
    node.put(owner, "a", b"old", ttl_s=1.0)
    node.now += 2
    assert node.commit(owner, new, b"new").status is PutStatus.STORED
    assert node.get(owner, "a") == b"new"

"""What an operator sees and may do: pages, explanations, evictions, figures."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from moontide.kvstore.errors import InvalidRequest
from moontide.kvstore.keys import BlockKey, EntryId, string_entry_id
from moontide.kvstore.store import Evicted, EvictScope, inspection, retiring, scoped_eviction
from moontide.kvstore.types import PutStatus, ReserveStatus

from .conftest import LAYOUT, SEGMENT_BYTES, TP2, MakeNode, Node, entry_of, namespace_named

Chain = Callable[..., list[BlockKey]]
(WHOLE,) = LAYOUT.whole()


@pytest.fixture
def filled(node: Node, chain: Chain) -> Node:
    """Five strings of 100 bytes and a chain of three blocks in two shards."""
    owner = node.connect()
    for index in range(5):
        node.put(owner, f"k/{index}", bytes(100))
    namespace = node.store.open_namespace(namespace_named("w"))
    node.put_blocks(owner, namespace, chain(3), TP2)
    return node


@pytest.mark.parametrize("compared", [3, 8192])
def test_pages_show_everything_once(
    filled: Node, monkeypatch: pytest.MonkeyPatch, compared: int
) -> None:
    monkeypatch.setattr(inspection, "MAX_COMPARED_KEYS", compared)
    seen: list[str] = []
    cursor = ""
    for _ in range(10):
        page = filled.store.list_blocks(
            namespace=None, key_prefix=b"", limit=4, cursor=cursor, now=filled.now
        )
        seen += [entry.key + entry.shard for entry in page.entries]
        cursor = page.cursor
        if not cursor:
            break
    assert len(seen) == len(set(seen)) == 11
    assert "s:k/4" in seen


def test_pages_are_filtered(filled: Node) -> None:
    def keys(namespace: bytes | None, prefix: bytes = b"") -> list[str]:
        page = filled.store.list_blocks(
            namespace=namespace, key_prefix=prefix, limit=100, cursor="", now=filled.now
        )
        return [entry.key for entry in page.entries]

    assert len(keys(namespace_named("w").digest)) == 6
    assert len(keys(b"")) == 5
    assert keys(bytes(32)) == []
    assert keys(None, b"k/1") == ["s:k/1"]


@pytest.mark.parametrize(
    ("limit", "cursor", "message"),
    [(0, "", "limit is 0"), (1001, "", "limit is 1001"), (1, "x", "cursor 'x'")],
)
def test_bad_pages_name_what_is_wrong(node: Node, limit: int, cursor: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        node.store.list_blocks(
            namespace=None, key_prefix=b"", limit=limit, cursor=cursor, now=node.now
        )


def test_an_entry_is_described(filled: Node) -> None:
    filled.now += 5
    page = filled.store.list_blocks(
        namespace=b"", key_prefix=b"k/0", limit=1, cursor="", now=filled.now
    )
    (entry,) = page.entries
    assert (entry.key, entry.tier, entry.num_bytes, entry.pins) == ("s:k/0", "dram", 100, 0)
    assert entry.idle_s == pytest.approx(5, abs=0.1)


def test_explanations(filled: Node, chain: Chain) -> None:
    owner = filled.connect()

    def state(entry: EntryId) -> str:
        return filled.store.explain(entry).state

    assert state(string_entry_id("k/0")) == "committed"
    filled.store.remove([string_entry_id("k/0")], filled.now)
    assert state(string_entry_id("k/0")) == "dropped"
    assert "removed by a user" in filled.store.explain(string_entry_id("k/0")).reason
    assert state(string_entry_id("never")) == "unknown"
    key = chain(1, "new")[0]
    namespace = filled.store.open_namespace(namespace_named("w"))
    filled.reserve_blocks(owner, namespace, [key], [WHOLE])
    assert state(entry_of(key, WHOLE)) == "reserved"


def test_an_eviction_of_a_namespace_takes_nothing_of_one_that_got_its_edition(
    filled: Node, chain: Chain
) -> None:
    def refill(name: str) -> None:
        filled.store.clear(namespace_named(name).digest, strings_only=False)
        namespace = filled.store.open_namespace(namespace_named(name))
        filled.put_blocks(owner, namespace, chain(3), TP2)

    owner = filled.connect()
    filled.store.open_namespace(namespace_named("other"))
    refill("w")
    eviction = filled.store.evict(EvictScope(namespace=namespace_named("w").digest), filled.now)
    next(eviction.planning)
    filled.store.clear(namespace_named("w").digest, strings_only=False)
    refill("other")
    assert eviction.takes.entries == 0


def test_dry_run_tells_what_an_eviction_takes(filled: Node, chain: Chain) -> None:
    shard_bytes = 768  # three layers of one head
    everything = Evicted(11, 5 * 128 + 6 * shard_bytes, 3 * 4)
    scopes: list[tuple[EvictScope, Evicted]] = [
        (EvictScope(), everything),
        (EvictScope(strings_only=True), Evicted(5, 640, 0)),
        (EvictScope(strings_only=True, num_bytes=129), Evicted(2, 256, 0)),
        (EvictScope(namespace=namespace_named("w").digest), Evicted(6, 6 * shard_bytes, 12)),
        (EvictScope(namespace=bytes(32)), Evicted(0, 0, 0)),
        (EvictScope(key_prefix=b"k/3"), Evicted(1, 128, 0)),
        (EvictScope(entries=(b"sk/1", b"sk/1", b"sx")), Evicted(1, 128, 0)),
        (EvictScope(entries=(b"k" + chain(1)[0],)), Evicted(2, 2 * shard_bytes, 4)),
        (EvictScope(older_than_s=10), Evicted(0, 0, 0)),
    ]
    for scope, expected in scopes:
        assert filled.store.evict(scope, filled.now).takes == expected
    filled.now += 11
    assert filled.store.evict(EvictScope(older_than_s=10), filled.now).takes == everything
    eviction = filled.store.evict(EvictScope(), filled.now)
    assert eviction.takes == everything
    assert sum(eviction.carry_out()) == everything.entries
    filled.check_idle(entries=0)


def test_eviction_leaves_pinned_entries(filled: Node) -> None:
    owner = filled.connect()
    ticket = filled.pin(owner, "k/2")
    assert sum(filled.store.evict(EvictScope(strings_only=True), filled.now).carry_out()) == 4
    assert filled.has("k/2") == [True]
    filled.store.unpin(owner, ticket)


def test_figures(filled: Node) -> None:
    owner = filled.connect()
    filled.get(owner, "k/0")
    filled.get(owner, "absent")
    stats = filled.store.stats(filled.now)
    dram = stats.tiers["dram"]
    assert dram.capacity_bytes == 8 * SEGMENT_BYTES
    assert dram.used_bytes == 5 * 128 + 6 * 768
    assert (dram.entries, dram.hits, dram.misses) == (11, 1, 1)
    assert (dram.bytes_in, dram.bytes_out) == (500 + 6 * 768, 100)
    assert (stats.clients, stats.namespaces, stats.segments, stats.segments_free) == (2, 1, 8, 7)
    assert msgspec.json.decode(msgspec.json.encode(stats))["tiers"]["dram"]["entries"] == 11


def test_audit_finds_what_is_wrong(filled: Node) -> None:
    """Nothing public breaks an account, so this reaches inside."""
    store = filled.store
    counters = store._counters
    counters.reserved_bytes += 1
    assert store.audit().differences == ["reserved bytes: 0 by walking, 1 by account"]
    counters.reserved_bytes -= 1
    key = next(iter(store._catalog.committed))
    slot = store._catalog.committed[key]
    store._catalog.pins[slot] += 1
    assert any(f"slot {slot}" in difference for difference in store.audit().differences)
    store._catalog.pins[slot] -= 1
    del store._catalog.committed[key]
    assert any("keys lead to one" in difference for difference in store.audit().differences)
    store._catalog.committed[key] = slot
    segment = store._pool.segments[store._entries.segment_of(slot)]
    segment.allocator.used_bytes += 64
    assert len(store.audit().differences) == 2
    segment.allocator.used_bytes -= 64


def test_bytes_out_of_blocks_are_what_readers_say_they_read(filled: Node) -> None:
    owner = filled.connect()
    before = filled.store.stats(filled.now).tiers["dram"].bytes_out
    ticket = filled.pin(owner, "k/2")
    pinned = filled.store.stats(filled.now).tiers["dram"].bytes_out
    filled.store.unpin(owner, ticket, 768)
    assert filled.store.stats(filled.now).tiers["dram"].bytes_out == pinned + 768
    assert pinned >= before


def test_what_took_a_slot_while_an_eviction_was_planned_is_judged_anew(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoped_eviction, "LOOKED_AT_ONCE", 2)
    owner = node.connect()
    for index in range(6):
        node.put(owner, f"old{index}", bytes(128))
    eviction = node.store.evict(EvictScope(key_prefix=b"old", num_bytes=1000), node.now)
    next(eviction.planning)
    node.store.remove([string_entry_id(f"old{index}") for index in range(6)], node.now)
    for index in range(6):
        node.put(owner, f"new{index}", bytes(128))
    assert sum(eviction.carry_out()) == 0
    assert all(node.has(*(f"new{index}" for index in range(6))))


def test_a_clear_in_parts_leaves_alone_what_comes_meanwhile(
    filled: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was there is a miss from the first moment on, and counts however it goes."""
    monkeypatch.setattr(retiring, "SWEPT_ENTRIES", 2)
    owner = filled.connect()
    sweep = filled.store.begin_clear(None, strings_only=True)
    parts = iter(sweep)
    names = [f"k/{index}" for index in range(5)]
    assert filled.has(*names) == [False] * 5
    next(parts)
    assert sweep.num_gone == 2
    for name in ("k/0", "k/2"):  # kept, and of no older value
        assert filled.put(owner, name, b"newer") is ReserveStatus.RESERVED
    assert filled.store.remove([string_entry_id("k/3")], filled.now) == 0
    for _ in parts:
        pass
    assert sweep.num_gone == 5
    assert filled.has(*names) == [True, False, True, False, False]
    assert filled.get(owner, "k/2") == b"newer"
    assert filled.store.clear(None, strings_only=True) == 2
    filled.check_idle(entries=6)


def test_a_clear_begun_in_the_middle_of_another_is_over_when_its_own_entries_are_gone(
    filled: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retiring, "SWEPT_SLOTS", 2)
    first = filled.store.begin_clear(None, strings_only=True)
    next(iter(first))
    assert filled.store.clear(namespace_named("w").digest, strings_only=False) == 6
    assert first.num_gone == 5
    filled.check_idle(entries=0)


@pytest.mark.parametrize("everything", [False, True])
def test_what_is_being_written_when_it_is_cleared_will_be_there(
    filled: Node, chain: Chain, everything: bool
) -> None:
    """Under a key that was there before, too."""
    owner = filled.connect()
    name = namespace_named("w")
    namespace = filled.store.open_namespace(name)
    new, newer = (filled.reserve(owner, key, 6) for key in ("k/5", "k/6"))
    blocks = filled.reserve_blocks(owner, namespace, chain(4)[3:], TP2, parent=chain(3)[2])
    if everything:
        filled.store.clear(None, strings_only=False)
    else:
        filled.store.clear(None, strings_only=True)
        filled.store.clear(name.digest, strings_only=False)
    assert filled.commit(owner, new, b"before").status is PutStatus.STORED
    assert filled.finish_blocks(owner, blocks) == [PutStatus.STORED] * 2
    for _ in range(3):
        filled.now += 2.0
        filled.store.expire(filled.now)
    assert filled.commit(owner, newer, b"during").status is PutStatus.STORED
    assert filled.has("k/0", "k/5", "k/6") == [False, True, True]
    assert filled.get(owner, "k/6") == b"during"
    written = [entry_of(chain(4)[3], shard) for shard in TP2]
    assert filled.store.exists(written, filled.now) == [True] * 2
    filled.check_idle(entries=4)


def test_what_is_pinned_or_replaced_while_an_eviction_runs_stays(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoped_eviction, "EVICTED_AT_ONCE", 2)
    owner = node.connect()
    for index in range(6):
        node.put(owner, f"k{index}", b"old")
    parts = node.store.evict(EvictScope(), node.now).carry_out()
    assert next(parts) == 2
    node.pin(owner, "k2")
    node.put(owner, "k3", b"new", if_exists="replace")
    node.store.remove([string_entry_id("k4")], node.now)
    assert list(parts) == [0, 1]
    assert node.has(*(f"k{index}" for index in range(6))) == [
        False,
        False,
        True,
        True,
        False,
        False,
    ]
    assert node.get(owner, "k3") == b"new"
    node.check()


@pytest.mark.parametrize("at_once", [1, 3, 1 << 13])
@pytest.mark.parametrize("num_bytes", [0, 1, 128, 1300, 1 << 30])
def test_bytes_to_evict_are_the_coldest_however_they_are_looked_at(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch, at_once: int, num_bytes: int
) -> None:
    monkeypatch.setattr(scoped_eviction, "LOOKED_AT_ONCE", at_once)
    node = make_node(max_entries=100)
    owner = node.connect()
    names = [f"k{index}" for index in range(20)]
    for name in names:
        node.put(owner, name, bytes(128))
    for name in names[:5]:  # these become the hottest
        assert node.get(owner, name) == bytes(128)
    eviction = node.store.evict(EvictScope(num_bytes=num_bytes), node.now)
    count = min(-(-num_bytes // 128), len(names))
    assert eviction.takes.entries == count
    assert sum(eviction.carry_out()) == count
    order = names[5:] + names[:5]
    assert node.has(*order) == [False] * count + [True] * (len(names) - count)

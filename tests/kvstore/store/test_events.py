"""The event stream: gapless, bounded, and what a follower learns from it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from moontide.kvstore.errors import OutOfSpace
from moontide.kvstore.events import KvEvent
from moontide.kvstore.keys import BlockKey, string_entry_id
from moontide.kvstore.store import EventLog, hbm
from moontide.kvstore.store.event_log import MAX_EVENTS, MAX_RING_BYTES
from moontide.transfer.types import Instance

from .conftest import LAYOUT, SEGMENT_BYTES, TP2, Node, entry_of, namespace_named

Chain = Callable[..., list[BlockKey]]
(WHOLE,) = LAYOUT.whole()


def told(node: Node) -> list[tuple[str, str, int]]:
    """(kind, tier, number of entries) of all events so far."""
    events = node.store.events.since(0)
    assert events is not None
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    return [(event.kind, event.tier, len(event.entries)) for event in events]


def last(node: Node) -> KvEvent:
    events = node.store.events.since(node.store.events.seq - 1)
    assert events is not None
    return events[0]


def test_put_and_remove_are_told(node: Node) -> None:
    owner = node.connect()
    node.put(owner, "a", b"x")
    assert last(node) == KvEvent(
        seq=1,
        kind="stored",
        instance=str(node.store.instance),
        tier="dram",
        entries=(string_entry_id("a").hex(),),
    )
    node.store.remove([string_entry_id("a")], node.now)
    assert (last(node).kind, last(node).entries) == ("removed", (b"sa".hex(),))


def test_chain_is_told_with_its_parent(node: Node, chain: Chain) -> None:
    owner, keys = node.connect(), chain(6)
    namespace = node.store.open_namespace(namespace_named("w"))
    node.put_blocks(owner, namespace, keys[:2], TP2)
    assert (last(node).parent, last(node).namespace) == ("", namespace_named("w").digest.hex())
    assert last(node).entries == tuple(
        entry_of(key, shard).hex() for key in keys[:2] for shard in TP2
    )
    node.put_blocks(owner, namespace, keys[2:3], TP2, parent=keys[1])
    assert last(node).parent == keys[1].hex()
    # A second writer stores what is missing: two runs, so two events.
    node.store.remove([entry_of(keys[1], shard) for shard in TP2], node.now)
    node.put_blocks(owner, namespace, keys, TP2)
    events = node.store.events.since(node.store.events.seq - 2)
    assert events is not None
    assert [(event.parent, len(event.entries)) for event in events] == [
        (keys[0].hex(), 2),
        (keys[2].hex(), 6),
    ]


def test_r38_every_way_an_entry_ends_is_told(node: Node) -> None:
    owner = node.connect()
    node.put(owner, "expires", b"x", ttl_s=1.0)
    node.now += 2
    node.store.expire(node.now)
    node.put(owner, "removed", b"x")
    node.store.remove([string_entry_id("removed")], node.now)
    node.put(owner, "corrupt", b"x")
    (found,), _ = node.store.lookup(owner, [string_entry_id("corrupt")], None, node.now)
    assert found is not None
    node.store.buffer(found.slot, found.generation)[0] = 0
    node.store.report_corrupt(found.slot, found.generation)
    node.put(owner, "cleared", b"x")
    node.store.clear(None, strings_only=False)
    assert told(node) == [
        ("stored", "dram", 1),
        ("removed", "dram", 1),
    ] * 3 + [("stored", "dram", 1), ("cleared", "dram", 0)]
    node.put(owner, "evicted", bytes(SEGMENT_BYTES))
    for index in range(8):
        node.put(owner, f"k{index}", bytes(SEGMENT_BYTES))
    assert ("removed", "dram", 1) in told(node)[8:]


def test_replace_is_told_as_stored(node: Node) -> None:
    owner = node.connect()
    node.put(owner, "a", b"x")
    node.put(owner, "a", b"y", if_exists="replace")
    assert told(node) == [("stored", "dram", 1)] * 2


def test_snapshot_is_what_is_there_as_of_its_number(node: Node, chain: Chain) -> None:
    owner, keys = node.connect(), chain(3)
    namespace = node.store.open_namespace(namespace_named("w"))
    node.put(owner, "a", b"x")
    node.put_blocks(owner, namespace, keys, [WHOLE])
    node.store.publish_hbm(owner, namespace, keys[:1], [], False)
    snapshot = node.store.events.snapshot()
    node.store.clear(None, strings_only=False)
    events = list(snapshot.events)
    assert {event.seq for event in events} == {snapshot.seq} == {3}
    assert [(event.tier, event.namespace[:4], len(event.entries)) for event in events] == [
        ("dram", "", 1),
        ("dram", namespace_named("w").digest.hex()[:4], 3),
        ("hbm", namespace_named("w").digest.hex()[:4], 1),
    ]


def test_ring_is_bounded_in_events_and_bytes() -> None:
    log = EventLog(list)
    for _ in range(MAX_EVENTS + 10):
        log.publish("stored", instance="i", tier="dram", entries=[b"k"])
    assert log.since(9) is None
    oldest = log.since(10)
    assert oldest is not None
    assert [event.seq for event in oldest] == list(range(11, MAX_EVENTS + 11))
    log.publish("stored", instance="i", tier="dram", entries=[bytes(MAX_RING_BYTES)])
    assert log.since(log.seq - 2) is None
    assert log.since(log.seq) == []
    assert log.since(log.seq + 1) is None


def test_listeners_hear_until_they_cancel() -> None:
    log = EventLog(list)
    heard: list[int] = []
    cancel = log.on_event(lambda event: heard.append(event.seq))
    log.publish("stored", instance="i", tier="dram")
    cancel()
    cancel()
    log.publish("stored", instance="i", tier="dram")
    assert heard == [1]


def test_hbm_blocks_end_with_their_connection(node: Node, chain: Chain) -> None:
    engine = Instance.new("engine")
    owner, keys = node.connect(engine), chain(3)
    namespace = node.store.open_namespace(namespace_named("w"))
    node.store.publish_hbm(owner, namespace, [*keys, keys[0]], [], False)
    node.store.publish_hbm(owner, namespace, keys[:1], [], False)
    assert last(node).entries == tuple((b"k" + key).hex() for key in keys)
    assert last(node).instance == str(engine)
    node.store.publish_hbm(owner, namespace, [], [keys[0], b"unknown".rjust(16)], False)
    assert last(node).entries == ((b"k" + keys[0]).hex(),)
    assert node.store.stats(node.now).hbm_blocks == 2
    node.store.disconnect(owner)
    assert told(node) == [("stored", "hbm", 3), ("removed", "hbm", 1), ("cleared", "hbm", 0)]
    assert node.store.stats(node.now).hbm_blocks == 0


def test_hbm_of_one_connection_survives_the_end_of_another(node: Node, chain: Chain) -> None:
    engine = Instance.new("engine")
    first, second = node.connect(engine), node.connect(engine)
    namespace = node.store.open_namespace(namespace_named("w"))
    node.store.publish_hbm(first, namespace, chain(3), [], False)
    node.store.publish_hbm(second, namespace, chain(1), [], False)
    node.store.publish_hbm(first, namespace, [], [], True)
    assert told(node)[-2:] == [("cleared", "hbm", 0), ("stored", "hbm", 1)]


def test_hbm_blocks_of_a_connection_are_bounded(
    node: Node, chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hbm, "MAX_BLOCKS_PER_OWNER", 4)
    owner = node.connect()
    namespace = node.store.open_namespace(namespace_named("w"))
    node.store.publish_hbm(owner, namespace, chain(4), [], False)
    with pytest.raises(OutOfSpace, match="4 hbm blocks are published and 2 more"):
        node.store.publish_hbm(owner, namespace, chain(2, "x"), [], False)
    node.store.publish_hbm(owner, namespace, chain(2, "x"), chain(2), False)
    assert node.store.stats(node.now).hbm_blocks == 4

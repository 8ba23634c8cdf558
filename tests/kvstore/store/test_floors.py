"""Floors: a raised one makes all that a namespace holds a miss at once, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from moontide.kvstore.events import KvEvent
from moontide.kvstore.keys import BlockKey
from moontide.kvstore.store import FILL_OWNER
from moontide.kvstore.types import PutStatus, ReserveStatus

from .conftest import LAYOUT, MakeNode, Node, entry_of, namespace_named

Chain = Callable[..., list[BlockKey]]
(WHOLE,) = LAYOUT.whole()
DIGEST = namespace_named("w").digest


@pytest.fixture
def namespace(node: Node) -> int:
    return node.store.open_namespace(namespace_named("w"))


def sweep(node: Node) -> None:
    while node.store.expire(node.now):
        pass


def test_r31_nothing_older_than_the_floor_is_matched_from_the_moment_it_is_raised(
    node: Node, namespace: int, chain: Chain
) -> None:
    owner, keys, other = node.connect(), chain(6), chain(3, "other")
    beside = node.store.open_namespace(namespace_named("beside"))
    node.put_blocks(owner, namespace, keys, [WHOLE])
    node.put_blocks(owner, beside, other, [WHOLE])
    node.put(owner, "text", b"stays")
    entries = [entry_of(key, WHOLE) for key in keys]

    assert node.store.raise_floor(DIGEST)

    assert node.prefix(owner, namespace, keys) == 0
    assert not any(node.store.exists(entries, node.now))
    assert node.store.lookup(owner, entries, None, node.now)[0] == [None] * 6
    assert node.store.missing(namespace, keys, [WHOLE]) == list(range(6))
    assert node.store.explain(entries[0]).reason == "the floor of its namespace was raised"
    page = node.store.list_blocks(
        namespace=DIGEST, key_prefix=b"", limit=100, cursor="", now=node.now
    )
    assert page.entries == []
    assert node.prefix(owner, beside, other) == 3
    assert node.get(owner, "text") == b"stays"


def test_what_is_stored_after_the_raise_is_found_under_the_old_handle(
    node: Node, namespace: int, chain: Chain
) -> None:
    owner, keys = node.connect(), chain(4)
    node.put_blocks(owner, namespace, keys, [WHOLE])
    node.store.raise_floor(DIGEST)
    node.put_blocks(owner, namespace, keys[:2], [WHOLE])
    assert node.prefix(owner, namespace, keys) == 2
    sweep(node)
    assert node.prefix(owner, namespace, keys) == 2
    assert node.store.open_namespace(namespace_named("w")) == namespace
    node.check_idle(entries=2)


def test_swept_entries_give_their_space_back_and_their_number(
    node: Node, namespace: int, chain: Chain
) -> None:
    owner, keys = node.connect(), chain(5)
    for _ in range(3):
        node.put_blocks(owner, namespace, keys, [WHOLE])
        node.store.raise_floor(DIGEST)
        sweep(node)
        assert node.store.used_bytes == 0
    node.check_idle(entries=0)


def test_a_view_taken_before_the_raise_keeps_its_bytes(
    node: Node, namespace: int, chain: Chain
) -> None:
    owner, keys = node.connect(), chain(1)
    node.put_blocks(owner, namespace, keys, [WHOLE])
    found = node.lookup_blocks(owner, namespace, keys, [WHOLE], pin_s=0.0)
    ((entry,),) = found.blocks
    node.store.raise_floor(DIGEST)
    sweep(node)
    assert bytes(node.store.buffer(entry.slot, entry.generation)[:4]) == b"\1\1\1\1"
    node.put_blocks(owner, namespace, keys, [WHOLE])
    assert node.prefix(owner, namespace, keys) == 1
    node.store.unpin(owner, found.ticket)
    sweep(node)
    node.check_idle(entries=1)


def test_what_is_being_written_when_the_floor_is_raised_never_becomes_visible(
    node: Node, namespace: int, chain: Chain
) -> None:
    owner, keys = node.connect(), chain(2)
    results = node.reserve_blocks(owner, namespace, keys[:1], [WHOLE])
    fills = node.reserve_fill(namespace, keys[1:], [WHOLE], parent=keys[0])
    node.store.raise_floor(DIGEST)
    assert node.prefix(owner, namespace, keys, pending=True) == 0
    for writer, reserved in ((owner, results), (FILL_OWNER, fills)):
        assert node.finish_blocks(writer, reserved) == [PutStatus.FAILED]
    assert node.prefix(owner, namespace, keys) == 0
    sweep(node)
    node.check_idle(entries=0)


def test_a_raise_is_told_once_and_the_sweep_tells_nothing(
    node: Node, namespace: int, chain: Chain
) -> None:
    owner, keys = node.connect(), chain(3)
    node.put_blocks(owner, namespace, keys, [WHOLE])
    told: list[KvEvent] = []
    node.store.events.on_event(told.append)
    node.store.raise_floor(DIGEST)
    assert [(event.kind, event.namespace) for event in told] == [("cleared", DIGEST.hex())]
    assert list(node.store.events.snapshot().events) == []
    sweep(node)
    assert len(told) == 1


def test_what_room_needs_below_the_floor_goes_untold(make_node: MakeNode, chain: Chain) -> None:
    """It went with the raise: followers know of nothing that could be removed."""
    node = make_node(max_entries=8)
    owner, keys = node.connect(), chain(8)
    namespace = node.store.open_namespace(namespace_named("w"))
    node.put_blocks(owner, namespace, keys[:6], [WHOLE])
    node.store.raise_floor(DIGEST)
    told: list[KvEvent] = []
    node.store.events.on_event(told.append)
    for index in range(8):
        node.put(owner, f"text/{index}", b"new")
    assert {event.kind for event in told} == {"stored"}


def test_nothing_below_the_floor_is_copied_to_a_colder_tier(
    node: Node, namespace: int, chain: Chain
) -> None:
    owner = node.connect()
    (reserved,) = node.put_blocks(owner, namespace, chain(1), [WHOLE])
    node.store.raise_floor(DIGEST)
    assert node.store.hold(reserved.slot, reserved.generation) is None


def test_a_raise_leaves_what_is_stored_to_the_sweep(make_node: MakeNode, chain: Chain) -> None:
    node = make_node(max_entries=200_000, dram_bytes=64 << 20, segment_bytes=8 << 20)
    owner = node.connect()
    namespace = node.store.open_namespace(namespace_named("w"))
    keys = chain(20_000)
    for start in range(0, len(keys), 4000):
        parent = keys[start - 1] if start else b""
        results = node.put_blocks(
            owner, namespace, keys[start : start + 4000], [WHOLE], parent=parent
        )
        assert all(result.status is ReserveStatus.RESERVED for result in results)
    before = node.store.used_bytes
    for _ in range(1000):
        node.store.raise_floor(DIGEST)
    assert node.store.used_bytes == before
    assert node.prefix(owner, namespace, keys[:1]) == 0
    sweep(node)
    assert node.store.used_bytes == 0


def test_r62_a_key_stored_under_another_namespace_is_none_of_this_one(
    node: Node, namespace: int, chain: Chain
) -> None:
    owner, keys = node.connect(), chain(1)
    forged = node.store.open_namespace(namespace_named("forged"))
    node.put_blocks(owner, forged, keys, [WHOLE])
    assert node.prefix(owner, forged, keys) == 1
    assert node.prefix(owner, namespace, keys) == 0

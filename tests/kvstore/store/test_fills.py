"""Fills: what the store itself brings into its DRAM, found from their reservation on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from moontide.kvstore.errors import InvalidRequest
from moontide.kvstore.events import KvEvent
from moontide.kvstore.keys import BlockKey, string_entry_id
from moontide.kvstore.store import FILL_OWNER, REMOTE_TRANSPORT, Origin
from moontide.kvstore.types import PutStatus, ReserveStatus, Tier

from .conftest import FROM_DISK, LAYOUT, NUM_LAYERS, MakeNode, Node, namespace_named

WHOLE = LAYOUT.whole()
Chain = Callable[..., list[BlockKey]]


@pytest.fixture
def namespace(node: Node) -> int:
    return node.store.open_namespace(namespace_named("model"))


def test_what_comes_from_another_node_is_no_answer_to_another_node(
    node: Node, namespace: int, chain: Chain
) -> None:
    owner, keys = node.connect(), chain(4)
    node.put_blocks(owner, namespace, keys[:1], WHOLE)
    node.reserve_fill(namespace, keys[1:2], WHOLE)
    node.reserve_fill(namespace, keys[2:], WHOLE, origin=Origin(Tier.DRAM, REMOTE_TRANSPORT))
    for local_only, count in ((False, 4), (True, 2)):
        assert node.store.covers(namespace, keys, WHOLE, local_only=local_only) is (count == 4)
        assert node.store.covers(namespace, keys[:2], WHOLE, local_only=local_only)
        for pending in (False, True):
            found = node.lookup_blocks(
                owner, namespace, keys, WHOLE, pending=pending, local_only=local_only
            )
            assert len(found.blocks) == count
    node.reserve_blocks(owner, namespace, keys[2:3], WHOLE, parent=keys[1])
    found = node.lookup_blocks(owner, namespace, keys, WHOLE, pending=True, local_only=True)
    assert len(found.blocks) == 3  # a client here writes it, too


def events_of(node: Node) -> list[KvEvent]:
    seen: list[KvEvent] = []
    node.store.events.on_event(seen.append)
    return seen


def test_filling_blocks_count_from_their_reservation_on(
    node: Node, namespace: int, chain: Chain
) -> None:
    owner, keys = node.connect(), chain(3)
    node.put_blocks(owner, namespace, keys[:1], WHOLE)
    fills = node.reserve_fill(namespace, keys[1:], WHOLE)
    found = node.lookup_blocks(owner, namespace, keys, WHOLE, pin_s=5.0)
    assert [[entry.tier for entry in block] for block in found.blocks] == [
        [Tier.DRAM],
        [Tier.NVME],
        [Tier.NVME],
    ]
    assert found.transports == ["shm", "file", "file"]
    assert [block[0].extents for block in found.blocks] == [NUM_LAYERS, 0, 0]
    assert node.finish_blocks(FILL_OWNER, fills) == [PutStatus.STORED] * 2
    found = node.lookup_blocks(owner, namespace, keys, WHOLE)
    assert {entry.tier for block in found.blocks for entry in block} == {Tier.DRAM}
    assert found.transports == []


def test_what_clients_still_write_counts_only_as_pending(
    node: Node, namespace: int, chain: Chain
) -> None:
    owner, keys = node.connect(), chain(1)
    node.reserve_blocks(owner, namespace, keys, WHOLE)
    assert node.prefix(owner, namespace, keys) == 0
    assert node.prefix(owner, namespace, keys, pending=True) == 1


def test_a_block_is_filled_once(node: Node, namespace: int, chain: Chain) -> None:
    keys = chain(2)
    node.put_blocks(node.connect(), namespace, keys[:1], WHOLE)
    first = node.reserve_fill(namespace, keys, WHOLE)
    assert [result.status for result in first] == [ReserveStatus.EXISTS, ReserveStatus.RESERVED]
    assert node.reserve_fill(namespace, keys[1:], WHOLE)[0].status is ReserveStatus.EXISTS
    node.finish_blocks(FILL_OWNER, first[1:])


def test_missing_names_what_is_neither_here_nor_filling(
    node: Node, namespace: int, chain: Chain
) -> None:
    keys = chain(4)
    node.put_blocks(node.connect(), namespace, keys[:1], WHOLE)
    node.reserve_fill(namespace, keys[2:3], WHOLE)
    assert node.store.missing(namespace, keys, WHOLE) == [1, 3]


def counted(node: Node) -> tuple[int, int]:
    stats = node.store.stats(node.now).tiers["dram"]
    return stats.hits, stats.misses


def test_r10_what_fills_is_a_hit_once_it_is_whole_and_a_miss_when_it_fails(
    node: Node, namespace: int, chain: Chain
) -> None:
    owner, keys = node.connect(), chain(4)
    node.put_blocks(owner, namespace, keys[:1], WHOLE)
    whole, fails, lost = node.reserve_fill(namespace, keys[1:], WHOLE)
    node.lookup_blocks(owner, namespace, keys, WHOLE)
    node.lookup_blocks(owner, namespace, keys[:2], WHOLE)
    assert counted(node) == (2, 0)
    node.finish_blocks(FILL_OWNER, [whole])
    assert counted(node) == (4, 0)
    node.store.abort(FILL_OWNER, [fails.slot], [fails.generation])
    assert counted(node) == (4, 1)
    node.store.clear(None, strings_only=False)
    node.finish_blocks(FILL_OWNER, [lost])
    assert counted(node) == (4, 2)


def test_what_a_ticket_holds_is_not_found_once_more(
    node: Node, namespace: int, chain: Chain
) -> None:
    owner, keys = node.connect(), chain(3)
    node.put_blocks(owner, namespace, keys[:2], WHOLE)
    (fill,) = node.reserve_fill(namespace, keys[2:], WHOLE)
    first = node.lookup_blocks(owner, namespace, keys[:1], WHOLE, pin_s=5.0)
    again = node.store.lookup_blocks(
        owner,
        namespace,
        keys,
        WHOLE,
        pin_s=5.0,
        pending=False,
        now=node.now,
        held=first.ticket,
    )
    assert (len(again.blocks), counted(node)) == (3, (2, 0))
    node.finish_blocks(FILL_OWNER, [fill])
    assert counted(node) == (3, 0)


def test_a_failed_fill_ends_and_its_readers_hear_it(
    node: Node, namespace: int, chain: Chain
) -> None:
    keys, told = chain(1), list[bool]()
    (fill,) = node.reserve_fill(namespace, keys, WHOLE)
    node.store.watch_extent(fill.slot, fill.generation, 0, told.append)
    node.store.abort(FILL_OWNER, [fill.slot], [fill.generation])
    assert told == [False]
    assert node.prefix(node.connect(), namespace, keys) == 0
    node.check_idle(entries=0)


def test_pinned_bytes_of_a_failed_fill_are_not_used_again_before_unpin(
    node: Node, namespace: int, chain: Chain
) -> None:
    owner, keys = node.connect(), chain(1)
    (fill,) = node.reserve_fill(namespace, keys, WHOLE)
    found = node.lookup_blocks(owner, namespace, keys, WHOLE, pin_s=0.0)
    node.store.abort(FILL_OWNER, [fill.slot], [fill.generation])
    assert node.store.stats(node.now).tiers["dram"].used_bytes > 0
    node.store.unpin(owner, found.ticket)
    assert node.store.stats(node.now).tiers["dram"].used_bytes == 0


def test_announced_checksums_are_told_before_the_bytes_come(
    node: Node, namespace: int, chain: Chain
) -> None:
    (fill,) = node.reserve_fill(namespace, chain(1), WHOLE)
    sums = [11, 22, 33]
    node.store.expect_checksums(FILL_OWNER, fill.slot, fill.generation, sums)
    found = node.lookup_blocks(node.connect(), namespace, chain(1), WHOLE)
    assert list(memoryview(found.checksums).cast("Q")) == sums
    with pytest.raises(InvalidRequest, match="2 checksums"):
        node.store.expect_checksums(FILL_OWNER, fill.slot, fill.generation, sums[:2])


def test_fills_take_at_most_half_of_the_tier(make_node: MakeNode, chain: Chain) -> None:
    node = make_node()
    namespace = node.store.open_namespace(namespace_named("model"))
    statuses = [result.status for result in node.reserve_fill(namespace, chain(600), WHOLE)]
    stats = node.store.stats(node.now).tiers["dram"]
    assert ReserveStatus.FULL in statuses
    assert node.store.stats(node.now).refused_puts == 0  # of nobody
    assert stats.reserved_bytes <= stats.capacity_bytes // 2
    assert node.put(node.connect(), "still", b"room") is ReserveStatus.RESERVED


def test_fills_do_not_take_the_place_of_what_is_wanted_with_them(
    make_node: MakeNode, chain: Chain
) -> None:
    """The prompt's end lies here, colder than all else, and its beginning on disk."""
    node = make_node(max_entries=12)
    namespace = node.store.open_namespace(namespace_named("model"))
    owner, keys = node.connect(), chain(8)
    node.put_blocks(owner, namespace, keys[4:], WHOLE, parent=keys[3])
    for index in range(8):
        node.put(owner, f"newer{index}", b"x")
    node.store.touch_blocks(namespace, keys, WHOLE, node.now)
    node.reserve_fill(namespace, keys[:4], WHOLE)
    assert node.store.missing(namespace, keys, WHOLE) == []


def test_r16_forged_and_repeated_notices_about_fills_change_nothing(
    node: Node, namespace: int, chain: Chain
) -> None:
    stranger, keys = node.connect(), chain(1)
    (fill,) = node.reserve_fill(namespace, keys, WHOLE)
    place = [fill.slot], [fill.generation]
    with pytest.raises(InvalidRequest, match="no such reservation"):
        node.store.advance(stranger, *place, 0, [1])
    assert node.store.commit(stranger, *place, [], node.now)[0].status is PutStatus.FAILED
    assert node.store.abort(stranger, *place) == 0
    with pytest.raises(InvalidRequest):
        node.store.expect_checksums(stranger, fill.slot, fill.generation, [1, 2, 3])
    with pytest.raises(InvalidRequest):
        node.store.reserved_buffer(stranger, fill.slot, fill.generation)
    assert node.finish_blocks(FILL_OWNER, [fill]) == [PutStatus.STORED]
    assert node.store.commit(FILL_OWNER, *place, [], node.now)[0].status is PutStatus.FAILED
    assert node.store.stats(node.now).stale_notices == 6
    assert node.prefix(stranger, namespace, keys) == 1


@pytest.mark.parametrize("how", ["remove", "clear", "replace"])
def test_what_was_removed_while_it_filled_never_comes_back(node: Node, how: str) -> None:
    owner, entry = node.connect(), string_entry_id("key")
    (fill,) = node.store.reserve_entry_fill(
        FILL_OWNER, [entry], [3], origin=FROM_DISK, now=node.now
    )
    if how == "remove":
        node.store.remove([entry], node.now)
    elif how == "clear":
        node.store.clear(None, strings_only=True)
    else:
        node.put(owner, "key", b"new", if_exists="replace")
        node.store.remove([entry], node.now)
    assert node.commit(FILL_OWNER, fill, b"old").status is PutStatus.FAILED
    assert node.get(owner, "key") is None
    node.check_idle(entries=0)


def test_a_block_is_awaited_until_something_of_it_appears(
    node: Node, namespace: int, chain: Chain
) -> None:
    owner, (key,) = node.connect(), chain(1)
    seen: list[int] = []
    cancel = node.store.watch_block(
        key, lambda: seen.append(node.prefix(owner, namespace, [key], pending=True))
    )
    node.put_blocks(owner, namespace, [key], WHOLE)
    assert seen == [1, 1]  # as it was reserved, and as it was committed
    cancel()
    (other,) = chain(1, "other")
    node.put_blocks(owner, namespace, [other], WHOLE)
    assert len(seen) == 2


def _store_for_one_request(node: Node, owner: int, namespace: int, key: BlockKey) -> None:
    reserved = node.store.reserve_blocks(
        owner,
        namespace,
        [key],
        b"",
        WHOLE,
        shared_memory=False,
        ttl_s=60.0,
        request_scoped=True,
        now=node.now,
    )
    for layer in range(NUM_LAYERS):
        node.write_layer(owner, reserved, layer)
    place = [result.slot for result in reserved], [result.generation for result in reserved]
    node.store.commit(owner, *place, [], node.now)


def test_request_scoped_blocks_are_found_by_key_and_told_to_nobody(
    node: Node, namespace: int, chain: Chain
) -> None:
    owner, (key,) = node.connect(), chain(1)
    events = events_of(node)
    _store_for_one_request(node, owner, namespace, key)
    assert node.prefix(owner, namespace, [key]) == 1
    assert node.store.stats(node.now).request_scoped == 1
    assert node.store.audit().request_scoped == 1
    page = node.store.list_blocks(namespace=None, key_prefix=b"", limit=10, cursor="", now=node.now)
    assert page.entries == []
    assert list(node.store.events.snapshot().events) == []
    node.now += 61.0
    node.store.expire(node.now)
    assert node.prefix(owner, namespace, [key]) == 0
    assert events == []
    assert node.store.stats(node.now).request_scoped == 0
    node.check_idle(entries=0)


def test_request_scoped_blocks_end_with_their_last_reader(
    node: Node, namespace: int, chain: Chain
) -> None:
    owner, (key,) = node.connect(), chain(1)
    events = events_of(node)
    _store_for_one_request(node, owner, namespace, key)
    first, second = (
        node.lookup_blocks(owner, namespace, [key], WHOLE, pin_s=10.0).ticket for _ in range(2)
    )
    node.store.unpin(owner, first)
    assert node.prefix(owner, namespace, [key]) == 1
    node.store.unpin(owner, second)
    assert node.prefix(owner, namespace, [key]) == 0
    assert events == []
    node.check_idle(entries=0)


def test_request_scoped_blocks_need_a_time_to_live(
    node: Node, namespace: int, chain: Chain
) -> None:
    with pytest.raises(InvalidRequest, match="ttl_s"):
        node.reserve_fill(namespace, chain(1), WHOLE, request_scoped=True)

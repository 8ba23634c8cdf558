"""Pins: views and tickets, their ends, and what they keep."""

from __future__ import annotations

import secrets

import pytest

from moontide.kvstore.errors import InvalidRequest, OutOfSpace
from moontide.kvstore.keys import string_entry_id
from moontide.kvstore.types import ReserveStatus
from moontide.transfer.types import Instance

from .conftest import SEGMENT_BYTES, MakeNode, Node

HALF = SEGMENT_BYTES // 2


def fill_pool(node: Node, owner: int) -> int:
    """Puts until everything evictable is gone; how many were stored."""
    stored = 0
    for index in range(64):
        key = f"fill{secrets.token_hex(4)}{index}"
        stored += node.put(owner, key, bytes(HALF)) is ReserveStatus.RESERVED
    return stored


def test_pinned_entry_is_not_evicted(make_node: MakeNode) -> None:
    node = make_node(eviction="lru")
    owner = node.connect()
    node.put(owner, "a", b"kept" * 1000)
    ticket = node.pin(owner, "a")
    fill_pool(node, owner)
    assert node.get(owner, "a") == b"kept" * 1000
    node.store.unpin(owner, ticket)
    fill_pool(node, owner)
    assert node.get(owner, "a") is None


def test_removed_entry_keeps_its_bytes_until_the_last_unpin(node: Node) -> None:
    owner = node.connect()
    node.put(owner, "a", b"kept")
    tickets = [node.pin(owner, "a"), node.pin(owner, "a", 9.0)]
    (found,), _ = node.store.lookup(owner, [string_entry_id("a")], None, node.now)
    assert found is not None
    assert node.store.remove([string_entry_id("a")], node.now) == 1
    assert node.get(owner, "a") is None
    fill_pool(node, owner)
    for ticket in tickets:
        assert node.store.buffer(found.slot, found.generation) == b"kept"
        node.store.unpin(owner, ticket)
    with pytest.raises(InvalidRequest):
        node.store.buffer(found.slot, found.generation)


def test_key_can_be_put_again_while_its_removed_bytes_are_pinned(node: Node) -> None:
    owner = node.connect()
    node.put(owner, "a", b"old")
    ticket = node.pin(owner, "a")
    node.put(owner, "a", b"new", if_exists="replace")
    assert node.get(owner, "a") == b"new"
    node.store.unpin(owner, ticket)
    assert node.get(owner, "a") == b"new"
    node.check_idle(entries=1)


def test_r15_double_and_foreign_releases_are_refused_and_counted(node: Node) -> None:
    mine, other = node.connect(), node.connect()
    node.put(mine, "a", b"x")
    first, second = node.pin(mine, "a"), node.pin(other, "a")
    node.store.unpin(mine, first)
    for owner, ticket in ((mine, first), (mine, second), (mine, b""), (other, bytes(16))):
        with pytest.raises(InvalidRequest, match="not held by this connection"):
            node.store.unpin(owner, ticket)
    stats = node.store.stats(node.now)
    assert (stats.double_releases, stats.pins) == (4, 1)
    node.store.unpin(other, second)
    node.check_idle(entries=1)


def test_views_end_with_their_connection_tickets_do_not(node: Node) -> None:
    mine, other = node.connect(), node.connect()
    node.put(mine, "a", b"x")
    node.pin(mine, "a")
    ticket = node.pin(mine, "a", 10.0)
    node.store.disconnect(mine)
    assert node.store.stats(node.now).pins == 1
    node.store.renew(ticket, 20.0, node.now)
    node.now += 15
    node.store.expire(node.now)
    assert node.store.stats(node.now).pins == 1
    node.store.unpin(other, ticket)
    node.check_idle(entries=1)


def test_ticket_ends_at_its_time(node: Node) -> None:
    owner = node.connect()
    node.put(owner, "a", b"x")
    ticket = node.pin(owner, "a", 10.0)
    node.now += 9.9
    node.store.expire(node.now)
    assert node.store.stats(node.now).tickets == 1
    node.now += 0.2
    node.store.expire(node.now)
    node.check_idle(entries=1)
    with pytest.raises(InvalidRequest, match="expired"):
        node.store.renew(ticket, 10.0, node.now)


@pytest.mark.parametrize("ttl_s", [0.0, -1.0, float("nan"), float("inf"), 1e6])
def test_unbounded_tickets_are_refused(node: Node, ttl_s: float) -> None:
    owner = node.connect()
    node.put(owner, "a", b"x")
    ticket = node.pin(owner, "a", 10.0)
    with pytest.raises(InvalidRequest, match="ttl_s"):
        node.store.renew(ticket, ttl_s, node.now)
    if ttl_s:
        with pytest.raises(InvalidRequest, match="pin_s"):
            node.pin(owner, "a", ttl_s)


def test_views_cannot_be_renewed(node: Node) -> None:
    owner = node.connect()
    node.put(owner, "a", b"x")
    with pytest.raises(InvalidRequest, match="is a view"):
        node.store.renew(node.pin(owner, "a"), 10.0, node.now)


def test_nothing_is_pinned_on_a_miss(node: Node) -> None:
    owner = node.connect()
    assert node.pin(owner, "absent", 10.0) == b""
    node.check_idle(entries=0)


def test_a_client_pins_no_more_than_its_share(make_node: MakeNode) -> None:
    node = make_node(max_pin_ratio=0.25)
    client = Instance.new("client")
    mine, mine_too, other = node.connect(client), node.connect(client), node.connect()
    for index in range(5):
        node.put(mine, f"k{index}", bytes(HALF))
    tickets = [node.pin(owner, f"k{index}") for index, owner in enumerate((mine, mine_too) * 2)]
    share = 2 * SEGMENT_BYTES
    with pytest.raises(OutOfSpace, match=f"{HALF} bytes; this client holds {share} and may hold"):
        node.pin(mine, "k4")
    node.pin(other, "k4")
    node.store.unpin(mine, tickets[0])
    node.pin(mine, "k4")


def test_put_is_refused_only_when_pins_leave_no_room(make_node: MakeNode) -> None:
    node = make_node(max_pin_ratio=1.0)
    owner = node.connect()
    assert fill_pool(node, owner) == 64
    keys = [f"last{index}" for index in range(16)]
    tickets = []
    for key in keys:
        node.put(owner, key, bytes(HALF))
        tickets.append(node.pin(owner, key))
    assert node.put(owner, "more", b"x") is ReserveStatus.FULL
    node.store.unpin(owner, tickets.pop())
    assert node.put(owner, "more", b"x") is ReserveStatus.RESERVED
    assert all(node.has(*keys[:-1]))


def test_r12_memory_under_a_reader_is_not_reused(make_node: MakeNode) -> None:
    """Pins hold through clear, eviction and churn; a reader sees the bytes it was promised."""
    node = make_node(max_pin_ratio=0.5)
    reader, writer = node.connect(), node.connect()
    promised = {}
    for index in range(20):
        data = bytes([index]) * (1000 + 300 * index)
        node.put(writer, f"k{index}", data)
        (found,), _ = node.store.lookup(reader, [string_entry_id(f"k{index}")], 0, node.now)
        assert found is not None
        promised[index] = (node.store.buffer(found.slot, found.generation), data)
    node.store.clear(None, strings_only=False)
    for _ in range(3):
        fill_pool(node, writer)
        node.store.clear(None, strings_only=True)
    assert all(view == data for view, data in promised.values())
    assert node.has("k0") == [False]
    node.store.disconnect(reader)
    node.store.clear(None, strings_only=False)
    node.check_idle(entries=0)

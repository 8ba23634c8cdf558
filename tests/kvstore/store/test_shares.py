"""One client cannot take what others need: reservations, pins, tickets, the way out."""

from __future__ import annotations

import pytest

from moontide.kvstore.errors import OutOfSpace
from moontide.kvstore.keys import string_entry_id
from moontide.kvstore.store import pins
from moontide.kvstore.types import ReserveStatus
from moontide.transfer.types import Instance

from .conftest import SEGMENT_BYTES, MakeNode, Node

GREEDY = Instance("greedy", 1, bytes(16))


def test_a_client_reserves_no_more_than_its_share(node: Node) -> None:
    first, second, other = node.connect(GREEDY), node.connect(GREEDY), node.connect()
    held = [node.reserve(first, f"a{index}", SEGMENT_BYTES) for index in range(4)]
    assert all(got.status is ReserveStatus.RESERVED for got in held)
    refused = node.reserve(second, "more", 1)
    assert refused.status is ReserveStatus.FULL
    assert f"has {4 * SEGMENT_BYTES} bytes of 4 entries reserved" in refused.reason
    for index in range(4):
        assert node.put(other, f"b{index}", bytes(SEGMENT_BYTES)) is ReserveStatus.RESERVED
    node.store.abort(first, [held[0].slot], [held[0].generation])
    assert node.reserve(second, "more", 1).status is ReserveStatus.RESERVED
    node.check()
    node.store.disconnect(first)
    node.store.disconnect(second)
    node.check_idle(entries=4)


def test_tiny_reservations_leave_slots_for_others(make_node: MakeNode) -> None:
    node = make_node(max_entries=64)
    greedy, other = node.connect(GREEDY), node.connect()
    statuses = [node.reserve(greedy, f"a{index}", 0).status for index in range(64)]
    assert statuses.count(ReserveStatus.RESERVED) == 32
    for index in range(100):
        assert node.put(other, f"b{index}", b"value") is ReserveStatus.RESERVED


def test_quarantine_counts_as_reserved(node: Node) -> None:
    """A client that reconnects again and again with reservations open gets no more by it."""
    for index in range(8):
        owner = node.connect(GREEDY)
        node.reserve(owner, f"a{index}", SEGMENT_BYTES, shared_memory=True)
        node.store.disconnect(owner)
        node.check()
    assert node.store.stats(node.now).quarantined == 4
    assert node.put(node.connect(), "b", bytes(SEGMENT_BYTES)) is ReserveStatus.RESERVED
    node.store.client_exited(GREEDY)
    node.check_idle(entries=1)


def test_a_small_pool_takes_one_entry_of_any_size(make_node: MakeNode) -> None:
    node = make_node(dram_bytes=SEGMENT_BYTES)
    owner = node.connect()
    for index in range(3):
        assert node.put(owner, f"k{index}", bytes(SEGMENT_BYTES)) is ReserveStatus.RESERVED


def test_pinned_tiny_entries_leave_slots_for_others(make_node: MakeNode) -> None:
    node = make_node(max_entries=64)
    greedy, other = node.connect(GREEDY), node.connect()
    pinned = 0
    for index in range(64):
        node.put(greedy, f"a{index}", b"")
        try:
            pinned += bool(node.pin(greedy, f"a{index}", 10.0))
        except OutOfSpace:
            break
    assert pinned == 16
    for index in range(100):
        assert node.put(other, f"b{index}", b"value") is ReserveStatus.RESERVED


def test_tickets_are_shared_out(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pins, "MAX_CLIENT_TICKETS", 3)
    greedy, other = node.connect(GREEDY), node.connect()
    node.put(greedy, "a", b"value")
    tickets = [node.pin(greedy, "a", 10.0) for _ in range(3)]
    with pytest.raises(OutOfSpace, match="3 by this client"):
        node.pin(greedy, "a")
    node.pin(other, "a")
    node.store.unpin(greedy, tickets[0])
    node.pin(greedy, "a")


def test_tickets_of_crashing_clients_leave_room(node: Node) -> None:
    """Tickets outlive their client, so a bound a client is not enough."""
    refused = 0
    for life in range(5):
        client = Instance.new("crashing")
        owner = node.connect(client)
        for index in range(2):
            key = f"{life}-{index}"
            node.put(owner, key, bytes(SEGMENT_BYTES))
            try:
                node.pin(owner, key, 3600.0)
            except OutOfSpace:
                refused += 1
        node.store.client_exited(client)
    assert refused == 4
    other = node.connect()
    for index in range(4):
        assert node.put(other, f"b{index}", bytes(SEGMENT_BYTES)) is ReserveStatus.RESERVED


def test_what_many_pin_together_counts_once(node: Node) -> None:
    owners = [node.connect() for _ in range(8)]
    for index in range(2):
        node.put(owners[0], f"k{index}", bytes(SEGMENT_BYTES))
    for owner in owners:
        assert all(node.pin(owner, key) for key in ("k0", "k1"))


def test_an_entry_of_any_size_can_be_sent(make_node: MakeNode) -> None:
    node = make_node(dram_bytes=4 * SEGMENT_BYTES, max_pin_ratio=0.1)
    owner = node.connect()
    for key in ("a", "b"):
        node.put(owner, key, bytes(SEGMENT_BYTES))
    a, b = string_entry_id("a"), string_entry_id("b")
    with pytest.raises(OutOfSpace, match="ask for fewer"):
        node.store.lookup_to_send(owner, [a, b], node.now)
    (found,), view = node.store.lookup_to_send(owner, [a], node.now)
    assert found is not None
    with pytest.raises(OutOfSpace, match="ask for fewer"):
        node.store.lookup_to_send(owner, [b], node.now)
    node.store.unpin(owner, view)
    node.store.lookup_to_send(owner, [b], node.now)

"""Copies of extents for clients that do not read them are bounded for all together."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from moontide.kvstore import wire
from moontide.kvstore.daemon.answers import Outgoing
from moontide.kvstore.daemon.budget import Budget
from moontide.kvstore.daemon.peer import Peer
from moontide.kvstore.daemon.requests import answer
from moontide.kvstore.errors import Busy
from moontide.kvstore.keys import string_entry_id
from moontide.kvstore.store import PoolSettings, Store
from moontide.transfer.types import Instance

SIZE = 1000


@pytest.fixture
def store() -> Iterator[Store]:
    settings = PoolSettings(dram_bytes=1 << 20, segment_bytes=1 << 20, max_entries=100)
    store = Store(settings, Instance.new("node"), now=0.0)
    yield store
    store.close()


def test_copies_on_their_way_are_bounded(store: Store) -> None:
    client = Instance.new("client")
    store.connect(1, client)
    copies = Budget(2 * SIZE, "copies of extents")
    peer = Peer(store, 1, client, False, wire.WIRE_VERSION, bytes, float, copies)
    (got,) = store.reserve(1, [string_entry_id("a")], [SIZE], now=0.0)
    store.commit(1, [got.slot], [got.generation], [7], 0.0)
    read = wire.Read([got.slot, got.slot], [got.generation, got.generation + 1], [0, 0])
    replies = [answer(peer, read, 0) for _ in range(2)]
    with pytest.raises(Busy, match="2000 are on their way"):
        answer(peer, read, 0)
    first = replies[0]
    assert isinstance(first, Outgoing)
    assert first.reply == wire.GetReply([SIZE, -1], [7, 0])
    assert first.release is not None
    first.release()
    answer(peer, read, 0)


def test_one_piece_may_be_larger_than_all() -> None:
    budget = Budget(10, "tests")
    budget.take(100)
    with pytest.raises(Busy):
        budget.take(1)
    budget.give_back(100)
    assert budget.used_bytes == 0

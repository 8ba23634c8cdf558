"""A hand-off's news: what the peer tells is followed at once, a peer that tells nothing new is left
alone for a moment."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from contextlib import closing

import pytest

from moontide.kvstore import BlockKey, Group, KVLayout, Namespace, Tier
from moontide.kvstore.daemon.peers import news
from moontide.kvstore.daemon.peers.offers import Offer, RemoteEntry
from moontide.kvstore.daemon.peers.plan import FillPlan, Piece
from moontide.kvstore.daemon.peers.reserving import FillSpec, reserve_pieces
from moontide.kvstore.errors import StoreUnavailable
from moontide.kvstore.store import PoolSettings, Store
from moontide.transfer.types import Instance

LAYOUT = KVLayout((Group("full", 2, 1, 8, "float16"),))
NAMESPACE = Namespace(weights_id="w", layout=LAYOUT, tokenizer_digest="t", block_tokens=16)
POOL = PoolSettings(dram_bytes=1 << 20, segment_bytes=1 << 18, max_entries=100)
[SHARD] = LAYOUT.whole()
KEY = BlockKey(b"k" * 16)


def at_peer(extents: int) -> RemoteEntry:
    return RemoteEntry(SHARD, 7, 1, 0, 0, extents, Tier.DRAM, array("Q", [1, 2]))


class Peer:
    """Answers at once: `entry`, and what became of the layer it is asked for."""

    def __init__(self, entry: RemoteEntry | None, outcome: bool | None = None) -> None:
        self.entry, self.outcome, self.asked = entry, outcome, 0
        self.pins = self

    def renew(self) -> None:
        """Its pins go on by themselves."""

    async def find_pending(
        self, keys: Sequence[bytes], *, wait_s: float, pin_s: float | None
    ) -> Offer:
        self.asked += 1
        return [[self.entry]] if self.entry is not None else []

    async def await_extent(self, entry: RemoteEntry, extent: int) -> bool | None:
        self.asked += 1
        return self.outcome

    async def refresh(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            piece.remote = self.entry


def pauses(peer: Peer, before: RemoteEntry | None, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether one `news` takes longer than the peer's answers."""
    monkeypatch.setattr(news, "PAUSE_SECONDS", 60.0)
    piece = Piece(KEY, SHARD, 1, 1, memoryview(bytearray(16)), 2, 8, 8, before)
    source = news.GrowingSource(peer, None)  # type: ignore[arg-type]  # what it uses of them

    async def ask() -> bool:
        try:
            async with asyncio.timeout(0.05):
                await source.news(FillPlan([piece]))
        except TimeoutError:
            return True
        return False

    paused = asyncio.run(ask())
    assert peer.asked == 1
    return paused


@pytest.mark.parametrize(
    ("before", "peer", "paused"),
    [
        (None, Peer(at_peer(0)), False),  # its place is known: now its layers can be waited for
        (None, Peer(at_peer(2)), False),
        (at_peer(0), Peer(at_peer(1), outcome=True), False),
        (None, Peer(None), True),
        (at_peer(0), Peer(at_peer(0), outcome=True), True),
        (at_peer(0), Peer(at_peer(0), outcome=False), True),  # its writer gave up
        (at_peer(0), Peer(at_peer(0), outcome=None), True),
    ],
)
def test_only_a_peer_that_tells_nothing_new_is_left_alone(
    before: RemoteEntry | None, peer: Peer, paused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pauses(peer, before, monkeypatch) is paused


@pytest.mark.parametrize("successor", [None, at_peer(1)])
def test_r17_r18_what_its_writer_gave_up_is_waited_for_no_longer_than_another_may_take(
    successor: RemoteEntry | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(news, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(news, "ORPHANED_SECONDS", 0.0)
    with closing(Store(POOL, Instance.new("ours"))) as store:
        store.connect(1, Instance.new("client"))
        number = store.open_namespace(NAMESPACE)
        spec = FillSpec(number, NAMESPACE, [KEY], [b""], [SHARD], Tier.DRAM, "theirs")
        pieces, _ = reserve_pieces(store, spec)
        store.lookup_blocks(1, number, [KEY], [SHARD], pin_s=60.0, pending=False, now=0.0)
        plan, peer = FillPlan(pieces), Peer(at_peer(0), outcome=False)
        source = news.GrowingSource(peer, store)  # type: ignore[arg-type]  # what it uses of it
        asyncio.run(source.news(plan))  # it is there, and nothing of it is
        source.keep(plan)
        asyncio.run(source.news(plan))  # its writer gave up
        peer.entry = successor
        asyncio.run(source.news(plan))
        if successor is not None:
            source.keep(plan)
        else:
            with pytest.raises(StoreUnavailable, match="its writer gave up"):
                source.keep(plan)

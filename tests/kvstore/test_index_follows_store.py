"""The index, fed by a real store's events, finds exactly what the store finds."""

from __future__ import annotations

import random

import pytest

from moontide.kvstore.events import SnapshotBegin
from moontide.kvstore.index import PrefixIndex, StreamStatus
from moontide.kvstore.keys import BlockKey, Namespace, block_keys
from moontide.kvstore.layout import Group, KVLayout, Shard
from moontide.kvstore.store import EvictScope, PoolSettings, Store
from moontide.kvstore.types import ReserveStatus
from moontide.transfer.types import Instance

LAYOUT = KVLayout((Group("full", num_layers=1, num_kv_heads=2, head_dim=8, dtype="float32"),))
NAMESPACE = Namespace(weights_id="w", layout=LAYOUT, tokenizer_digest="t", block_tokens=4)
DAEMON, ENGINE = Instance("node", 1, b"d" * 16), Instance("node", 2, b"e" * 16)
SHARDINGS: list[tuple[Shard, ...]] = [
    LAYOUT.whole(),
    (Shard(0, (0, 1), (0, 1)), Shard(0, (0, 1), (1, 2))),
]
OWNER = 1
NUM_BLOCKS = 8


class Followed:
    """A small store and an index that follows it."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now = 1.0
        pool = PoolSettings(dram_bytes=64 << 10, segment_bytes=8 << 10, max_entries=40)
        self.store = Store(pool, DAEMON, now=self.now)
        self.namespace = self.store.open_namespace(NAMESPACE)
        self.store.connect(OWNER, ENGINE)
        self.chains = [block_keys(NAMESPACE, [chain] * (4 * NUM_BLOCKS)) for chain in range(1, 7)]
        self.index = PrefixIndex()
        self.seq = 0
        self.num_hits = 0
        self.resync()

    def resync(self) -> None:
        snapshot = self.store.events.snapshot()
        self.index.begin("s", SnapshotBegin(str(DAEMON), snapshot.seq))
        for event in snapshot.events:
            assert self.index.apply("s", event) is StreamStatus.OK
        assert self.index.live("s", snapshot.seq) is StreamStatus.OK
        self.seq = snapshot.seq

    def follow(self) -> None:
        """Events that came since; a quarter of the time some are lost, which is noticed."""
        events = self.store.events.since(self.seq)
        assert events is not None
        lose = len(events) > 1 and self.rng.random() < 0.25
        for event in events[1:] if lose else events:
            if self.index.apply("s", event) is StreamStatus.RESYNC:
                assert lose
                self.resync()
                return
            self.seq = event.seq

    def act(self) -> None:
        keys = self.rng.choice(self.chains)
        start = self.rng.randrange(NUM_BLOCKS)
        action = self.rng.choice(["put"] * 6 + ["hbm"] * 2 + ["evict", "clear", "close"])
        self.now += 0.1
        if action == "put":
            self.put(keys[: start + 1])
        elif action == "hbm":
            stored, removed = self.rng.choice([(keys[:start], []), ([], keys[start:])])
            self.store.publish_hbm(OWNER, self.namespace, stored, removed, False)
        elif action == "evict":
            prefix = keys[start][:1]
            list(self.store.evict(EvictScope(key_prefix=prefix), self.now).carry_out())
        elif action == "clear":
            self.store.clear(self.rng.choice([None, NAMESPACE.digest]), strings_only=False)
        else:
            self.store.disconnect(OWNER)
            self.store.connect(OWNER, ENGINE)

    def put(self, keys: list[BlockKey]) -> None:
        shards = self.rng.choice(SHARDINGS)
        reserved = self.store.reserve_blocks(
            OWNER, self.namespace, keys, b"", shards, shared_memory=False, now=self.now
        )
        taken = [r for r in reserved if r.status is ReserveStatus.RESERVED]
        slots, generations = [r.slot for r in taken], [r.generation for r in taken]
        if not slots:
            return
        self.store.advance(OWNER, slots, generations, 0, [0] * len(slots))
        if self.rng.random() < 0.1:
            self.store.abort(OWNER, slots, generations)
        else:
            self.store.commit(OWNER, slots, generations, [], self.now)

    def compare(self) -> None:
        for keys in self.chains:
            found = self.store.lookup_blocks(
                OWNER, self.namespace, keys, LAYOUT.whole(), pin_s=None, pending=False, now=self.now
            )
            matches = self.index.longest_prefix(NAMESPACE.digest.hex(), keys, LAYOUT)
            match = matches.get(str(DAEMON))
            assert (match.num_blocks if match else 0) == len(found.blocks)
            self.num_hits += len(found.blocks)
        self.index.check_integrity()


@pytest.mark.parametrize("seed", range(4))
def test_r38_after_any_churn_the_index_finds_what_the_store_finds(seed: int) -> None:
    followed = Followed(random.Random(seed))
    try:
        for _ in range(250):
            followed.act()
            followed.follow()
            followed.compare()
        stats = followed.store.stats(followed.now)
        assert sum(tier.evictions for tier in stats.tiers.values()) > 0
        assert followed.index.streams()["s"].skipped == 0
        assert followed.num_hits > 250
    finally:
        followed.store.close()

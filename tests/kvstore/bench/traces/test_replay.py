"""Eviction policies on a cut of Mooncake's conversation trace: every figure to the block."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from moontide.kvstore.bench.traces.replay import PolicyCache, replay_policy
from moontide.kvstore.bench.traces.trace import TraceRequest, prefill_seconds, read_trace
from moontide.kvstore.errors import InvalidRequest
from moontide.kvstore.store.eviction import POLICIES, EvictionName

TRACE = Path(__file__).parents[3] / "data" / "traces" / "conversation_3000.jsonl.gz"
NUM_BLOCKS = 80_619
HITS: dict[EvictionName, tuple[tuple[int, int], tuple[int, int]]] = {
    "slru": ((3116, 3118), (8381, 8688)),
    "lru": ((2559, 2394), (8321, 8542)),
    "cost_aware": ((3120, 3161), (8482, 8767)),
    "fifo": ((2355, 2335), (7492, 7419)),
    "lfu": ((3116, 3042), (8235, 7765)),
    "sieve": ((3116, 3042), (8235, 7765)),
    "length_aware": ((3681, 2987), (7630, 6572)),
}
"""Blocks hit in the first and the second half, at 3000 and at 10 000 blocks."""


@pytest.fixture(scope="module")
def requests() -> list[TraceRequest]:
    return read_trace(TRACE)


@pytest.mark.parametrize("policy", POLICIES)
def test_hits_on_the_cut_are_known(policy: EvictionName, requests: list[TraceRequest]) -> None:
    for capacity, expected in zip((3000, 10_000), HITS[policy], strict=True):
        replayed = replay_policy(requests, policy, capacity)
        assert (replayed.first.hits, replayed.second.hits) == expected
        assert replayed.whole.blocks == NUM_BLOCKS


def test_cost_aware_is_above_slru_on_either_half_and_slru_above_lru() -> None:
    for size in range(2):
        halves = zip(*(HITS[name][size] for name in ("cost_aware", "slru", "lru")), strict=True)
        for cost_aware, slru, lru in halves:
            assert cost_aware > slru > lru


def test_more_hits_save_more_prefill_time(requests: list[TraceRequest]) -> None:
    small, large = (replay_policy(requests, "slru", capacity).whole for capacity in (3000, 10_000))
    assert 0 < small.saved_ratio < large.saved_ratio < large.hit_ratio
    assert small.cold_seconds == large.cold_seconds


def test_prefill_grows_faster_than_prompts_and_a_cached_one_costs_next_to_nothing() -> None:
    assert prefill_seconds(131_072, 0) == pytest.approx(27.4, abs=0.1)
    assert prefill_seconds(131_072, 0) > 20 * prefill_seconds(8192, 0)
    assert prefill_seconds(8192, 8192) < 0.1 * prefill_seconds(8192, 0)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_cache_holds_no_more_than_its_capacity(policy: EvictionName) -> None:
    cache = PolicyCache(policy, 4)
    assert cache.request((1, 2, 3)) == 0
    assert cache.request((1, 2, 3)) == 3
    assert cache.request((1, 2, 4, 5)) == 2
    assert sum(block in cache for block in range(1, 6)) == 4
    assert cache.request(range(10, 30)) == 0
    assert cache.policy.check_integrity() == []


def test_a_line_that_is_no_request_is_named(tmp_path: Path) -> None:
    good = b'{"timestamp": 0, "input_length": 3, "output_length": 1, "hash_ids": [0]}\n'
    path = tmp_path / "trace.jsonl"
    path.write_bytes(good + b'{"timestamp": 0}\n')
    with pytest.raises(InvalidRequest, match=r"trace.jsonl:2 is no request"):
        read_trace(path)
    path.write_bytes(b"")
    with pytest.raises(InvalidRequest, match="holds no request"):
        read_trace(path)
    packed = tmp_path / "trace.jsonl.gz"
    packed.write_bytes(gzip.compress(good))
    assert read_trace(packed) == [TraceRequest(0, 3, 1, (0,))]

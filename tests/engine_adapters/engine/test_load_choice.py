"""Load or recompute, by numbers alone."""

from __future__ import annotations

import math

from hypothesis import given, strategies

from moontide.engine_adapters.builtin.engine.load_choice import (
    NEGLIGIBLE_LOAD_S,
    PATIENCE_S,
    PATIENCE_SHARE,
    Option,
    best,
    longest_wait_s,
)
from moontide.engine_adapters.builtin.engine.load_costs import (
    FIRST_BYTES_PER_S,
    HALF_LIFE_S,
    MeasuredRate,
    PrefillCost,
    TransferRates,
)
from moontide.engine_adapters.builtin.engine.load_progress import LoadProgress
from moontide.engine_adapters.builtin.engine.sequence import Source
from moontide.engine_adapters.builtin.model import ModelConfig
from moontide.kvstore import Tier

LAYERS = 30
BLOCK_TOKENS = 64
BLOCK_BYTES = 2_949_120  # SmolLM2-135M, float32
REMOTE = Source(Tier.DRAM, "tcp")
LOCAL = Source(Tier.DRAM, "shm")
CONFIG = ModelConfig(
    architecture="llama",
    num_layers=LAYERS,
    hidden_size=576,
    intermediate_size=1536,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    vocab_size=49152,
    context_tokens=8192,
    rope_theta=10000.0,
    rms_eps=1e-5,
)

bandwidths = strategies.floats(1e4, 1e10)
speeds = strategies.floats(10.0, 1e6)  # tokens a second
blocks = strategies.integers(1, 40)
rests = strategies.integers(1, 1000)  # tokens that nobody has


def options(
    num_blocks: int, rest: int, bytes_per_s: float, tokens_per_s: float, overlaps: bool
) -> list[Option]:
    cost = PrefillCost(CONFIG, "cpu")
    cost.note([range(1000)], 1000 / tokens_per_s)
    total = num_blocks * BLOCK_TOKENS + rest
    return [
        Option(
            count * BLOCK_BYTES / bytes_per_s,
            cost.seconds(range(count * BLOCK_TOKENS, total)),
            overlaps,
        )
        for count in range(num_blocks + 1)
    ]


@given(blocks, rests, bandwidths, speeds, strategies.booleans())
def test_it_is_never_worse_than_cold_or_load_alone(
    num_blocks: int, rest: int, bytes_per_s: float, tokens_per_s: float, overlaps: bool
) -> None:
    """By its own estimates, and but for what is too short to matter."""
    offered = options(num_blocks, rest, bytes_per_s, tokens_per_s, overlaps)
    chosen = offered[best(offered, LAYERS)].seconds(LAYERS)
    either = min(offered[0].seconds(LAYERS), offered[-1].seconds(LAYERS))
    assert chosen <= either + NEGLIGIBLE_LOAD_S


@given(blocks, rests, bandwidths, strategies.floats(1.0, 1e4), speeds, strategies.booleans())
def test_more_bandwidth_never_loads_less_nor_takes_longer(
    num_blocks: int,
    rest: int,
    bytes_per_s: float,
    factor: float,
    tokens_per_s: float,
    overlaps: bool,
) -> None:
    slow = options(num_blocks, rest, bytes_per_s, tokens_per_s, overlaps)
    fast = options(num_blocks, rest, bytes_per_s * factor, tokens_per_s, overlaps)
    of_slow, of_fast = best(slow, LAYERS), best(fast, LAYERS)
    assert of_fast >= of_slow
    slack = 1e-9 + NEGLIGIBLE_LOAD_S
    assert fast[of_fast].seconds(LAYERS) <= slow[of_slow].seconds(LAYERS) + slack


def test_a_slow_disk_that_overlaps_is_shared_between_loading_and_computing() -> None:
    """Alone, loading would take 1.4 s and computing 3 s: the first blocks are loaded while the
    others are computed."""
    offered = options(24, 36, 50e6, 500.0, overlaps=True)
    count = best(offered, LAYERS)
    assert 0 < count < 24
    assert offered[count].seconds(LAYERS) < 0.8 * offered[-1].seconds(LAYERS)


def test_blocks_before_a_slow_peers_are_loaded_and_its_own_computed() -> None:
    near, far = 0.001, 2.0  # seconds a block
    compute = 0.2
    offered = [
        Option(min(k, 5) * near + max(0, k - 5) * far, (9 - k) * compute, k <= 5) for k in range(9)
    ]
    assert best(offered, LAYERS) == 5


@given(
    strategies.integers(2, 100),
    strategies.floats(0.001, 100.0),
    strategies.floats(0.001, 1000.0),
)
def test_r51_a_load_at_a_steady_pace_is_dropped_where_computing_is_faster(
    num_parts: int, part_s: float, recompute_s: float
) -> None:
    """What waiting for it costs is bounded; one that would be over sooner is never dropped."""
    progress = LoadProgress(num_parts)
    for _ in range(num_parts):
        progress.asked(1, 0.0)
    end_s = num_parts * part_s
    dropped_at = None
    for number in range(num_parts):
        comes_at = (number + 1) * part_s
        if progress.late_at(recompute_s) < comes_at:
            dropped_at = progress.late_at(recompute_s)
            break
        progress.came(1, comes_at)
    patience = max(PATIENCE_S, PATIENCE_SHARE * recompute_s)
    if dropped_at is None:
        assert end_s <= (patience + recompute_s + part_s) * (1 + 1e-9)
    else:
        assert end_s > recompute_s
        assert dropped_at <= (patience + min(part_s, recompute_s)) * (1 + 1e-9)


def test_r51_a_load_of_which_nothing_comes_costs_a_twentieth_of_computing() -> None:
    progress = LoadProgress(33 << 21)
    for _ in range(4):
        progress.asked(1 << 21, 10.0)
    assert progress.late_at(4.0) == 10.2


def test_a_load_near_its_end_is_not_dropped_for_one_late_part() -> None:
    assert math.isinf(longest_wait_s(done_bytes=31, next_bytes=1, total_bytes=32, recompute_s=1.0))
    progress = LoadProgress(32)
    for _ in range(32):
        progress.asked(1, 0.0)
    for number in range(31):
        progress.came(1, 0.01 * (number + 1))
    assert progress.late_at(1.0) == 0.31 + 1.0


def test_time_in_which_nothing_was_asked_for_does_not_count() -> None:
    progress = LoadProgress(4)
    progress.asked(1, 0.0)
    progress.came(1, 0.1)
    progress.asked(1, 5.0)
    assert abs(progress.busy_s(5.2) - 0.3) < 1e-9
    progress.came(1, 5.1)
    assert abs(progress.busy_s(9.0) - 0.2) < 1e-9
    assert math.isinf(progress.late_at(0.001))


def test_rates_are_weighted_by_bytes_and_seconds_and_the_latest_counts_most() -> None:
    rates = TransferRates()
    assert rates.seconds(REMOTE, 10**8, 0.0) == 10**8 / FIRST_BYTES_PER_S["tcp"]
    for _ in range(5):
        rates.note(REMOTE, 50_000_000, 0.05, 0.0)
    assert rates.seconds(REMOTE, 10**9, 0.0) == 1.0
    rates.note(REMOTE, 1_000, 0.1, 0.0)  # too little to tell
    assert rates.seconds(REMOTE, 10**9, 0.0) < 2.5
    rates.note(REMOTE, 50_000_000, 50.0, 0.0)
    assert rates.seconds(REMOTE, 10**9, 0.0) > 400
    assert rates.seconds(LOCAL, 10**9, 0.0) == 10**9 / FIRST_BYTES_PER_S["shm"]


def test_a_source_that_was_slow_is_tried_again_in_time() -> None:
    rate = MeasuredRate(1e8, 1.0, HALF_LIFE_S)
    rate.note(1e5, 1.0, 0.0)
    assert rate.per_second(0.0) == 1e5
    assert rate.per_second(HALF_LIFE_S) < 1e7
    assert rate.per_second(20 * HALF_LIFE_S) > 0.99e8


def test_later_tokens_cost_more() -> None:
    cost = PrefillCost(CONFIG, "cpu")
    for _ in range(20):
        cost.note([range(1536)], 3.0)
    whole = cost.seconds(range(1536))
    assert abs(whole - 3.0) < 1e-6
    assert cost.seconds(range(768, 1536)) > cost.seconds(range(768))
    parts = cost.seconds(range(768)) + cost.seconds(range(768, 1536))
    assert abs(parts - whole) < 1e-9
    assert cost.tokens_per_s > 1536 / 3.0

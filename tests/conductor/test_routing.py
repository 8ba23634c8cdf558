"""The routing decision, as the pure function it is."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moontide.conductor.routing import (
    Candidate,
    Choice,
    Exclusion,
    Reason,
    Refusal,
    Role,
    Snapshot,
    Speeds,
    route,
)
from moontide.conductor.routing.estimate import colocated

SPEEDS = Speeds(prefill_tokens_per_s=100.0, dram_tokens_per_s=10_000.0, request_seconds=2.0)


def candidate(name: str, **fields: object) -> Candidate:
    values: dict[str, object] = {
        "role": Role.BOTH,
        "excluded": None,
        "open_requests": 0,
        "max_running": 4,
        "pending_tokens": 0,
        "cached": {},
        "store": "",
        "speeds": SPEEDS,
    }
    return Candidate(name, **(values | fields))  # type: ignore[arg-type] # by keyword


def chosen(*candidates: Candidate, prompt_tokens: int = 1000) -> Choice:
    decision = route(Snapshot(prompt_tokens, 16, candidates))
    assert isinstance(decision, Choice)
    return decision


def test_the_only_worker_is_chosen() -> None:
    decision = chosen(candidate("a"))
    assert (decision.worker, decision.reason) == ("a", Reason.ONLY)


def test_the_longest_prefix_wins_among_idle_workers() -> None:
    decision = chosen(candidate("a"), candidate("b", cached={"dram": 640}))
    assert (decision.worker, decision.reason) == ("b", Reason.PREFIX)
    assert decision.cached_tokens == 640


def test_the_device_cache_beats_the_pool_of_equal_length() -> None:
    decision = chosen(candidate("a", cached={"dram": 640}), candidate("b", cached={"hbm": 640}))
    assert decision.worker == "b"


def test_r36_a_request_spills_once_waiting_costs_more_than_recomputing() -> None:
    holder = candidate("a", cached={"hbm": 640}, pending_tokens=600)
    decision = chosen(holder, candidate("b"))
    assert (decision.worker, decision.reason) == ("a", Reason.PREFIX)  # 6 s + 3.6 s < 10 s
    decision = chosen(replace(holder, pending_tokens=700), candidate("b"))
    assert (decision.worker, decision.reason) == ("b", Reason.SPILL)  # 7 s + 3.6 s > 10 s


def test_r36_a_burst_on_one_prefix_spreads_over_the_workers() -> None:
    workers = {
        name: candidate(name, cached={"hbm": 960} if name == "a" else {}) for name in ("a", "b")
    }
    taken = dict.fromkeys(workers, 0)
    for _ in range(40):
        decision = chosen(*workers.values())
        name = decision.worker
        taken[name] += 1
        worker = workers[name]
        workers[name] = replace(
            worker,
            cached={"hbm": 960},  # it has the prefix from now on
            open_requests=worker.open_requests + 1,
            pending_tokens=worker.pending_tokens + 1000 - decision.cached_tokens,
        )
    assert max(taken.values()) <= 0.7 * 40


def test_without_hits_the_least_estimated_wait_wins() -> None:
    decision = chosen(
        candidate("a", pending_tokens=500), candidate("b", pending_tokens=100), candidate("c")
    )
    assert (decision.worker, decision.reason) == ("c", Reason.LOAD)


def test_a_full_batch_costs_the_share_of_a_request_that_must_end_first() -> None:
    assert colocated(candidate("a", open_requests=3), 100).queue_seconds == 0
    assert colocated(candidate("a", open_requests=4), 100).queue_seconds == pytest.approx(0.5)
    assert colocated(candidate("a", open_requests=7), 100).queue_seconds == pytest.approx(2.0)


def test_at_least_one_token_is_computed_however_much_is_cached() -> None:
    assert colocated(candidate("a", cached={"hbm": 128}), 128).prefill_seconds > 0


def test_a_slower_worker_counts_as_slower() -> None:
    slow = candidate("a", speeds=replace(SPEEDS, prefill_tokens_per_s=10.0))
    assert chosen(slow, candidate("b")).worker == "b"


def test_nobody_is_a_refusal_that_counts_the_reasons() -> None:
    full = candidate("a", excluded=Exclusion.FULL)
    away = candidate("b", excluded=Exclusion.UNREACHABLE)
    decision = route(Snapshot(10, 16, (full, away)))
    assert isinstance(decision, Refusal)
    assert decision.overloaded
    assert "1 full, 1 unreachable" in decision.message
    decision = route(Snapshot(10, 16, (away,)))
    assert isinstance(decision, Refusal)
    assert not decision.overloaded
    assert isinstance(route(Snapshot(10, 16, ())), Refusal)


def test_a_limit_on_the_first_token_refuses_what_nobody_can_meet() -> None:
    decision = route(Snapshot(1000, 16, (candidate("a"),), ttft_limit_s=5.0))
    assert isinstance(decision, Refusal)
    assert decision.overloaded
    assert "10.00 s" in decision.message
    assert decision.retry_after_s == pytest.approx(5.0)
    assert isinstance(route(Snapshot(400, 16, (candidate("a"),), ttft_limit_s=5.0)), Choice)


candidates = st.builds(
    Candidate,
    id=st.sampled_from("abcdefgh"),
    excluded=st.sampled_from([None, None, *Exclusion]),
    open_requests=st.integers(0, 20),
    max_running=st.integers(1, 8),
    pending_tokens=st.integers(0, 10_000),
    role=st.sampled_from(Role),
    cached=st.dictionaries(
        st.sampled_from(["hbm", "dram", "nvme", "remote"]), st.integers(0, 4096)
    ),
    store=st.sampled_from(["", "node-a", "node-b"]),
    speeds=st.just(SPEEDS),
)


@given(
    st.lists(candidates, unique_by=lambda c: c.id, max_size=8),
    st.integers(1, 8192),
    st.sampled_from([1, 16]),
)
def test_r35_a_decision_equals_the_one_made_without_the_excluded(
    every: list[Candidate], prompt_tokens: int, max_tokens: int
) -> None:
    usable = [c for c in every if c.excluded is None]
    shuffled = random.Random(prompt_tokens).sample(usable, len(usable))
    with_all = route(Snapshot(prompt_tokens, max_tokens, tuple(every)))
    alone = route(Snapshot(prompt_tokens, max_tokens, tuple(shuffled)))
    if usable:
        assert with_all == alone
        assert isinstance(with_all, Choice)
        assert with_all.plan == with_all.estimates[0]
        assert with_all.plan.ttft_seconds == min(e.ttft_seconds for e in with_all.estimates)
    else:
        assert isinstance(with_all, Refusal)

"""Plans of two workers: who prefills, who decodes, and who steps in."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moontide.conductor.routing import (
    Candidate,
    Choice,
    Exclusion,
    Reason,
    Refusal,
    Role,
    Snapshot,
    Speeds,
    pick_decode,
    route,
    route_resumed,
    route_to,
)
from moontide.conductor.routing.estimate import HANDOFF_SECONDS, colocated, split

SPEEDS = Speeds(
    prefill_tokens_per_s=100.0,
    dram_tokens_per_s=10_000.0,
    nvme_tokens_per_s=5000.0,
    remote_tokens_per_s=1000.0,
)
P1 = Candidate(
    id="p1",
    role=Role.PREFILL,
    excluded=None,
    open_requests=0,
    max_running=4,
    pending_tokens=0,
    cached={},
    store="node-1",
    speeds=SPEEDS,
)
P2 = replace(P1, id="p2", store="node-2")
D1 = replace(P1, id="d1", role=Role.DECODE, store="node-2")
D2 = replace(D1, id="d2")
BOTH = replace(P1, id="b", role=Role.BOTH)


def decided(*candidates: Candidate, max_tokens: int = 16, prompt: int = 1000) -> Choice:
    decision = route(Snapshot(prompt, max_tokens, candidates))
    assert isinstance(decision, Choice)
    return decision


def plan(*candidates: Candidate, max_tokens: int = 16) -> tuple[str | None, str, Reason]:
    choice = decided(*candidates, max_tokens=max_tokens)
    return choice.prefill_worker, choice.worker, choice.reason


def test_a_prefill_and_a_decode_worker_split_a_request() -> None:
    assert plan(P1, D1) == ("p1", "d1", Reason.ONLY)


def test_cached_tokens_of_a_split_are_those_of_its_prefill_worker() -> None:
    choice = decided(replace(P1, cached={"dram": 640}), P2, replace(D1, cached={"hbm": 64}))
    assert (choice.prefill_worker, choice.cached_tokens) == ("p1", 640)
    assert choice.reason is Reason.PREFIX


def test_the_least_loaded_decode_worker_takes_it_and_its_own_prefix_breaks_ties() -> None:
    busy = replace(D1, open_requests=2, cached={"hbm": 640})
    assert decided(P1, busy, D2).worker == "d2"
    assert decided(P1, busy, replace(D2, open_requests=3, max_running=8)).worker == "d2"
    assert decided(P1, D1, replace(D2, cached={"dram": 64})).worker == "d2"
    assert decided(P1, D1, replace(D2, cached={"remote": 640})).worker == "d1"
    slow = replace(D1, speeds=replace(SPEEDS, token_seconds=0.5))
    assert decided(P1, slow, D2).worker == "d2"
    assert pick_decode([P1, BOTH, replace(D1, excluded=Exclusion.FULL)]) is None


def test_r36_prefills_spill_to_the_other_prefill_worker() -> None:
    holder = replace(P1, cached={"hbm": 640}, pending_tokens=600)
    assert plan(holder, P2, D1) == ("p1", "d1", Reason.PREFIX)
    assert plan(replace(holder, pending_tokens=700), P2, D1) == ("p2", "d1", Reason.SPILL)


def test_r36_a_burst_on_one_prefix_spreads_over_the_prefill_workers() -> None:
    workers = {  # the other node reads it from the first
        "p1": replace(P1, cached={"hbm": 960}),
        "p2": replace(P2, cached={"remote": 960}),
    }
    taken = dict.fromkeys(workers, 0)
    for _ in range(40):
        choice = decided(*workers.values(), D1)
        assert choice.prefill_worker is not None
        worker = workers[choice.prefill_worker]
        taken[worker.id] += 1
        pending = worker.pending_tokens + 1000 - choice.cached_tokens
        workers[worker.id] = replace(worker, cached={"hbm": 960}, pending_tokens=pending)
    assert max(taken.values()) <= 0.7 * 40


def test_workers_of_both_roles_compete_with_splits_by_the_estimate() -> None:
    assert plan(P1, D1, BOTH)[:2] == (None, "b")  # a hand-off costs something
    assert plan(P1, D1, replace(BOTH, pending_tokens=50))[:2] == ("p1", "d1")
    full = replace(D1, open_requests=8)
    assert plan(P1, full, replace(BOTH, pending_tokens=50))[:2] == (None, "b")


@pytest.mark.parametrize(
    ("candidates", "worker"),
    [
        ((P1,), "p1"),
        ((D1,), "d1"),
        ((P1, replace(D1, excluded=Exclusion.UNREACHABLE)), "p1"),
        ((replace(P1, excluded=Exclusion.FULL), D1), "d1"),
        ((replace(P1, store=""), D1), "d1"),  # nothing can be handed over without stores
        ((P1, replace(D1, store="")), "d1"),
    ],
)
def test_whoever_is_left_takes_everything(candidates: tuple[Candidate, ...], worker: str) -> None:
    assert plan(*candidates) == (None, worker, Reason.FALLBACK)


def test_others_do_not_step_in_where_the_roles_are_there() -> None:
    idle = replace(D1, open_requests=0)
    busy = replace(P1, pending_tokens=100_000)
    assert plan(busy, idle)[:2] == ("p1", "d1")
    assert plan(D1, replace(BOTH, pending_tokens=100_000))[:2] == (None, "b")


def test_an_answer_of_one_token_needs_no_decode_worker() -> None:
    assert plan(P1, D1, max_tokens=1) == (None, "p1", Reason.ONLY)


def test_the_handoff_costs_what_the_prefill_does_not_hide() -> None:
    both_trips = split(P1, D1, 1000).handoff_seconds
    assert both_trips == pytest.approx(HANDOFF_SECONDS)  # 1 s to send, 10 s to compute
    cached = replace(P1, cached={"hbm": 990})
    assert split(cached, D1, 1000).handoff_seconds == pytest.approx(HANDOFF_SECONDS + 0.9)
    same_node = replace(D1, store="node-1")
    assert split(cached, same_node, 1000).handoff_seconds == pytest.approx(HANDOFF_SECONDS)
    holds_it = replace(D1, cached={"dram": 960})
    assert split(cached, holds_it, 1000).handoff_seconds == pytest.approx(HANDOFF_SECONDS)
    full = replace(D1, open_requests=5)
    assert split(P1, full, 1000).handoff_seconds == pytest.approx(HANDOFF_SECONDS + 1.0)


def test_each_tier_is_loaded_at_its_own_speed() -> None:
    def load(**cached: int) -> float:
        return colocated(replace(BOTH, cached=cached), 10_000).load_seconds

    assert load(hbm=1000) == 0
    assert load(dram=1000) == pytest.approx(0.1)
    assert load(nvme=1000) == pytest.approx(0.2)
    assert load(remote=1000) == pytest.approx(1.0)
    assert load(hbm=500, dram=1000, remote=1000) == pytest.approx(1.1)
    assert colocated(replace(BOTH, cached={"remote": 640}), 1000).cached_tokens == 640


def test_a_lost_answer_goes_on_at_a_decode_worker() -> None:
    def resumed(*candidates: Candidate) -> tuple[str | None, str, Reason]:
        choice = route_resumed(Snapshot(1000, 16, candidates))
        assert isinstance(choice, Choice)
        return choice.prefill_worker, choice.worker, choice.reason

    assert resumed(P1, D1) == (None, "d1", Reason.RESUME)
    assert resumed(P1, D1, replace(BOTH, cached={"dram": 960}))[1] == "b"
    assert resumed(P1, replace(D1, excluded=Exclusion.TRIED))[1] == "p1"
    assert isinstance(route_resumed(Snapshot(1000, 16, ())), Refusal)


def test_a_named_worker_takes_it_or_nobody() -> None:
    choice = route_to(Snapshot(1000, 16, (P1, D1, BOTH)), "d1")
    assert isinstance(choice, Choice)
    assert (choice.worker, choice.prefill_worker, choice.reason) == ("d1", None, Reason.FORCED)
    full = replace(D1, excluded=Exclusion.FULL)
    refusal = route_to(Snapshot(1000, 16, (P1, full, BOTH)), "d1")
    assert isinstance(refusal, Refusal)
    assert refusal.overloaded

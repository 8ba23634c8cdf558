"""A worker's state: health, open requests, what is learned from requests that end."""

from __future__ import annotations

import pytest

from moontide.conductor.cluster.workers import LOST_SECONDS, SUSPECT_SECONDS, Health, Worker
from moontide.conductor.routing import Exclusion
from moontide.kvstore.membership import WorkerRecord

RECORD = WorkerRecord(
    id="w",
    instance="n/1/00",
    url="http://127.0.0.1:1",
    role="both",
    model="m",
    node="n",
    store_instance="",
    namespace="aa",
    block_tokens=16,
    tokenizer_digest="t",
    context_tokens=512,
    max_running=2,
)


def ready(now: float = 0.0) -> Worker:
    worker = Worker(RECORD, now)
    worker.answered(True, "ok", now)
    return worker


def exclusion(worker: Worker, *, max_queue: int = 1, limit: float | None = None) -> str | None:
    return worker.exclusion(max_queue=max_queue, token_seconds_limit=limit)


def test_a_worker_takes_requests_only_after_its_first_answered_check() -> None:
    worker = Worker(RECORD, 0.0)
    assert exclusion(worker) is Exclusion.UNREACHABLE
    worker.answered(False, "starting", 1.0)
    assert exclusion(worker) is Exclusion.NOT_READY
    worker.answered(True, "ok", 2.0)
    assert exclusion(worker) is None


def test_two_missed_checks_or_one_broken_connection_make_it_unreachable() -> None:
    worker = ready()
    worker.failed("timeout")
    assert worker.health is Health.READY
    worker.failed("timeout")
    assert worker.health is Health.UNREACHABLE
    worker.answered(True, "ok", 5.0)
    assert worker.health is Health.READY
    worker.refused("connection refused")
    assert exclusion(worker) is Exclusion.UNREACHABLE


def test_it_is_lost_only_after_silence_without_check_and_token() -> None:
    worker = ready(0.0)
    request = worker.open(prompt_tokens=10, cached_tokens=0, now=0.0)
    worker.refused("gone")
    assert not worker.is_lost(LOST_SECONDS)
    request.tokens(1, 5.0)
    assert not worker.is_lost(LOST_SECONDS + 4.0)
    assert worker.is_lost(LOST_SECONDS + 5.1)
    left = ready()
    left.is_gone = True  # it may be finishing what it has
    assert exclusion(left) is Exclusion.UNREACHABLE
    assert not left.is_lost(LOST_SECONDS + 1)


def test_it_is_suspect_sooner_but_not_while_it_gives_tokens() -> None:
    worker = ready(0.0)
    request = worker.open(prompt_tokens=10, cached_tokens=0, now=0.0)
    assert not worker.is_suspect(SUSPECT_SECONDS + 1)  # no check was missed
    worker.failed("timeout")
    worker.failed("timeout")
    assert worker.is_suspect(SUSPECT_SECONDS + 1)
    request.tokens(1, SUSPECT_SECONDS)
    assert not worker.is_suspect(SUSPECT_SECONDS + 1)
    worker.answered(True, "ok", 30.0)
    assert not worker.is_suspect(60.0)


def test_r34_open_requests_are_counted_until_closed_and_only_once() -> None:
    worker = ready()
    requests = [worker.open(prompt_tokens=100, cached_tokens=60, now=1.0) for _ in range(3)]
    assert (worker.open_requests, worker.pending_tokens) == (3, 120)
    assert exclusion(worker) is Exclusion.FULL
    requests[0].tokens(1, 2.0)
    assert worker.pending_tokens == 80
    requests[0].close(3.0)
    requests[0].close(3.0)
    assert worker.open_requests == 2
    worker.answered(True, "ok", 4.0)
    assert worker.open_requests == 2
    for request in requests[1:]:
        request.close(5.0)
    assert (worker.open_requests, worker.pending_tokens) == (0, 0)


def test_the_prefill_speed_is_learned_from_requests_that_had_the_worker_alone() -> None:
    worker = ready()
    before = worker.speeds.prefill_tokens_per_s
    alone = worker.open(prompt_tokens=1000, cached_tokens=0, now=0.0)
    queued = worker.open(prompt_tokens=1000, cached_tokens=0, now=0.0)
    alone.tokens(1, 10.0)
    queued.tokens(1, 20.0)
    queued.close(21.0, cached_tokens=0)
    assert worker.speeds.prefill_tokens_per_s == before
    alone.close(21.0, cached_tokens=0)
    assert worker.speeds.prefill_tokens_per_s == pytest.approx(before + 0.3 * (100.0 - before))
    assert worker.speeds.request_seconds > 2.0


def test_nothing_is_learned_from_requests_that_were_cut_or_hit_everything() -> None:
    worker = ready()
    before = worker.speeds.prefill_tokens_per_s
    cut = worker.open(prompt_tokens=1000, cached_tokens=0, now=0.0)
    cut.tokens(1, 10.0)
    cut.close(11.0)
    hit = worker.open(prompt_tokens=1000, cached_tokens=999, now=20.0)
    hit.tokens(1, 20.1)
    hit.close(21.0, cached_tokens=999)
    assert worker.speeds.prefill_tokens_per_s == before


def test_a_busy_worker_with_slow_tokens_is_left_out_until_it_is_idle() -> None:
    worker = ready()
    request = worker.open(prompt_tokens=10, cached_tokens=0, now=0.0)
    request.tokens(1, 1.0)
    request.tokens(2, 3.0)
    assert worker.speeds.token_seconds == pytest.approx(1.0)
    assert exclusion(worker, limit=0.5) is Exclusion.SLOW_TOKENS
    assert exclusion(worker, limit=2.0) is None
    request.close(4.0)
    assert exclusion(worker, limit=0.5) is None

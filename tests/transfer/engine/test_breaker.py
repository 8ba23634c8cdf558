"""R52: a path that keeps failing is left alone, and found to work again without anybody's
transfer."""

from __future__ import annotations

import random

from moontide.transfer.engine import BreakerLimits
from moontide.transfer.engine.breaker import Breaker

LIMITS = BreakerLimits(failures=3, first_pause_seconds=1.0, last_pause_seconds=4.0)


def broken(now: float = 0.0) -> Breaker:
    breaker = Breaker(LIMITS, random.Random(1))
    for _ in range(LIMITS.failures):
        breaker.failed(now)
    return breaker


def test_r52_it_opens_after_failures_in_a_row() -> None:
    breaker = Breaker(LIMITS, random.Random(1))
    breaker.failed(0.0)
    breaker.failed(0.0)
    breaker.succeeded()
    breaker.failed(0.0)
    breaker.failed(0.0)
    assert breaker.is_closed
    breaker.failed(0.0)
    assert not breaker.is_closed


def test_r52_a_probe_that_is_answered_closes_it() -> None:
    breaker = broken()
    assert breaker.probe_at is not None
    assert 0.75 <= breaker.probe_at <= 1.25
    breaker.probe()
    assert breaker.probe_at is None  # one at a time
    assert not breaker.is_closed
    breaker.succeeded()
    assert breaker.is_closed
    assert breaker.probe_at is None


def test_r52_pauses_grow_up_to_the_last_and_begin_anew_after_a_success() -> None:
    breaker, now, pauses = broken(), 0.0, []
    for _ in range(5):
        assert breaker.probe_at is not None
        pauses.append(breaker.probe_at - now)
        now = breaker.probe_at
        breaker.probe()
        breaker.probe_failed(now)
    for pause, expected in zip(pauses, (1.0, 2.0, 4.0, 4.0, 4.0), strict=True):
        assert 0.75 * expected <= pause <= 1.25 * expected
    breaker.succeeded()
    for _ in range(LIMITS.failures):
        breaker.failed(now)
    assert breaker.probe_at is not None
    assert breaker.probe_at - now <= 1.25


def test_what_fails_while_it_is_open_delays_no_probe() -> None:
    breaker = broken()
    due = breaker.probe_at
    breaker.failed(0.5)
    assert breaker.probe_at == due


def test_a_probe_that_fails_after_something_went_is_not_believed() -> None:
    breaker = broken()
    breaker.probe()
    breaker.succeeded()
    breaker.probe_failed(5.0)
    assert breaker.is_closed

"""When one looks instead of sleeping."""

from __future__ import annotations

import os
import time

import pytest

from moontide.kvstore.polling import REST_SECONDS, Polling

pytestmark = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="on one core nobody looks: nothing to tell apart"
)


def test_a_wait_like_a_short_one_is_worth_looking() -> None:
    polling = Polling(100e-6)
    assert polling.is_worthwhile(last_wait=100e-6, now=0.0)
    assert not polling.is_worthwhile(last_wait=0.001, now=0.0)


def test_without_time_to_look_nobody_looks() -> None:
    assert not Polling(0.0).is_worthwhile(last_wait=0.0, now=0.0)


def test_who_had_to_wait_for_the_core_rests() -> None:
    polling = Polling(100e-6, give_way=lambda: time.sleep(0.001))
    assert not polling.let_others_run()
    now = time.monotonic()
    assert not polling.is_worthwhile(last_wait=0.0, now=now)
    assert polling.is_worthwhile(last_wait=0.0, now=now + REST_SECONDS)


def test_on_a_single_core_nobody_looks() -> None:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        assert Polling(100e-6).seconds == 0.0
    finally:
        os.sched_setaffinity(0, cores)

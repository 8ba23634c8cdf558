"""When one looks instead of sleeping."""

from __future__ import annotations

import os
import time

import pytest

from moontide.kvstore.polling import CENSUS_SECONDS, REST_RATIO, Polling

pytestmark = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="on one core nobody looks: nothing to tell apart"
)


def test_a_wait_like_a_short_one_is_worth_looking() -> None:
    polling = Polling(100e-6, cores_are_enough=lambda: True)
    assert polling.is_worthwhile(last_wait=100e-6, now=0.0)
    assert not polling.is_worthwhile(last_wait=0.001, now=0.0)


def test_without_time_to_look_nobody_looks() -> None:
    assert not Polling(0.0).is_worthwhile(last_wait=0.0, now=0.0)


def test_who_had_to_wait_for_the_core_rests() -> None:
    polling = Polling(100e-6, cores_are_enough=lambda: True, give_way=lambda: time.sleep(0.001))
    begin = time.monotonic()
    assert not polling.let_others_run()
    waited = time.monotonic() - begin
    assert not polling.is_worthwhile(last_wait=0.0, now=begin + REST_RATIO * 0.001)
    assert polling.is_worthwhile(last_wait=0.0, now=begin + (REST_RATIO + 1) * waited)


def test_nobody_looks_while_threads_wait_for_cores() -> None:
    crowded = True
    polling = Polling(100e-6, cores_are_enough=lambda: not crowded)
    assert not polling.is_worthwhile(last_wait=0.0, now=10.0)
    crowded = False
    assert not polling.is_worthwhile(last_wait=0.0, now=10.0 + CENSUS_SECONDS / 2)
    assert polling.is_worthwhile(last_wait=0.0, now=10.0 + CENSUS_SECONDS)


def test_on_a_single_core_nobody_looks() -> None:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        assert Polling(100e-6).seconds == 0.0
    finally:
        os.sched_setaffinity(0, cores)

"""Which of several holders is asked first."""

from __future__ import annotations

from moontide.kvstore.daemon.peers.nearness import Nearness


def _near(*seconds: float, shares_boot: bool = False) -> int:
    nearness = Nearness()
    nearness.shares_boot = shares_boot
    for each in seconds:
        nearness.took(each)
    return nearness.closeness


def test_the_same_kernel_is_nearer_than_any_network() -> None:
    assert _near(5.0, shares_boot=True) > _near(1e-6)


def test_a_shorter_round_trip_is_nearer_and_about_the_same_is_equal() -> None:
    assert _near(100e-6) > _near(500e-6) > _near(20e-3)
    assert _near(100e-6) == _near(110e-6)


def test_one_slow_answer_does_not_make_it_far_and_many_do() -> None:
    assert _near(100e-6, 0.5) == _near(100e-6)
    assert _near(100e-6, *[20e-3] * 400) == _near(20e-3)


def test_who_was_never_heard_comes_last() -> None:
    assert _near() < _near(1.0)
    assert _near(shares_boot=True) > _near()

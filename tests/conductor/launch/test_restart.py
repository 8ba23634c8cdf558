from __future__ import annotations

from moontide.conductor.launch.restart import (
    MAX_QUICK_DEATHS,
    QUICK_SECONDS,
    GiveUp,
    Restart,
    RestartPolicy,
)


def test_quick_deaths_wait_longer_each_time_and_then_end() -> None:
    policy = RestartPolicy()
    verdicts = [policy.on_death(1.0) for _ in range(MAX_QUICK_DEATHS + 1)]
    assert verdicts[:-1] == [Restart(delay) for delay in (0.1, 0.4, 1.6, 6.4, 8.0)]
    assert verdicts[-1] == GiveUp(MAX_QUICK_DEATHS + 1)


def test_a_long_life_forgets_the_deaths_before() -> None:
    policy = RestartPolicy()
    for _ in range(3 * MAX_QUICK_DEATHS):
        assert isinstance(policy.on_death(1.0), Restart)
        assert policy.on_death(QUICK_SECONDS) == Restart(0.1)

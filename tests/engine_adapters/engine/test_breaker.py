from moontide.engine_adapters.builtin.engine.breaker import Breaker


def test_it_opens_after_failures_in_a_row_only() -> None:
    breaker = Breaker(threshold=3, cooldown_s=1.0)
    for now in (0.0, 0.1):
        breaker.on_failure(now)
    breaker.on_success()
    for now in (0.2, 0.3):
        breaker.on_failure(now)
    assert breaker.allows(0.3)
    breaker.on_failure(0.4)
    assert not breaker.allows(0.5)
    assert breaker.opened == 1


def test_r52_one_probe_a_cooldown_and_it_closes_by_itself() -> None:
    breaker = Breaker(threshold=1, cooldown_s=1.0)
    breaker.on_failure(0.0)
    assert [breaker.allows(now) for now in (0.9, 1.0, 1.1, 1.9, 2.0)] == [
        False,
        True,
        False,
        False,
        True,
    ]
    breaker.on_failure(2.1)
    assert not breaker.allows(2.5)
    assert breaker.allows(3.0)
    breaker.on_success()
    assert breaker.allows(3.0)
    assert not breaker.is_open

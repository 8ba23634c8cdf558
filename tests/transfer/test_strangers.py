"""Who waits before having proved anything: bounded, and the longest waiting make room."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from moontide.transfer import StrangerLimits, Strangers

LIMITS = StrangerLimits(total=4, per_address=2)


def test_one_address_pushes_out_its_own() -> None:
    strangers: Strangers[int] = Strangers(LIMITS)
    assert [strangers.arrived(guest, "a") for guest in (1, 2)] == [None, None]
    assert strangers.arrived(3, "b") is None
    assert strangers.arrived(4, "a") == 1
    assert list(strangers) == [2, 3, 4]


def test_from_many_addresses_the_one_with_most_makes_room() -> None:
    strangers: Strangers[int] = Strangers(LIMITS)
    for guest, address in ((1, "a"), (2, "b"), (3, "b"), (4, "c")):
        assert strangers.arrived(guest, address) is None
    assert strangers.arrived(5, "d") == 2
    assert list(strangers) == [1, 3, 4, 5]


def test_who_proved_the_token_is_never_pushed_out() -> None:
    strangers: Strangers[int] = Strangers(LIMITS)
    strangers.arrived(1, "a")
    strangers.left(1)
    strangers.left(1)
    assert [strangers.arrived(guest, "a") for guest in (2, 3, 4)] == [None, None, 2]


def test_half_of_all_connections_may_be_strangers() -> None:
    assert StrangerLimits.within(512) == StrangerLimits(total=256, per_address=128)
    assert StrangerLimits.within(1) == StrangerLimits(total=1, per_address=1)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.sampled_from("abc"))))
def test_whatever_comes_and_goes_the_bounds_hold(
    steps: list[tuple[bool, int, str]],
) -> None:
    strangers: Strangers[int] = Strangers(LIMITS)
    waiting: list[int] = []
    for arrives, guest, address in steps:
        if not arrives:
            strangers.left(guest)
            waiting = [each for each in waiting if each != guest]
        elif guest not in waiting:
            pushed_out = strangers.arrived(guest, address)
            waiting = [each for each in waiting if each != pushed_out] + [guest]
        strangers.check_integrity()
        assert list(strangers) == waiting

"""A trickle is a stall; work that goes on is none."""

from __future__ import annotations

import pytest

from moontide.transfer.errors import Unavailable
from moontide.transfer.tcp.pace import LEAST_BYTES, Pace


def test_single_bytes_do_not_buy_time() -> None:
    pace = Pace(10.0, now=0.0)
    for second in range(10):
        assert pace.left(float(second)) == 10 - second
        pace.moved(1, float(second))
    with pytest.raises(Unavailable, match="10 bytes in 10 s"):
        pace.left(10.0)


def test_enough_bytes_or_something_new_begin_anew() -> None:
    pace = Pace(10.0, now=0.0)
    pace.moved(LEAST_BYTES - 1, 8.0)
    assert pace.left(9.0) == 1.0
    pace.moved(1, 9.0)
    assert pace.left(9.0) == 10.0
    pace.restart(15.0)
    assert pace.left(20.0) == 5.0
    assert pace.quiet(20.0) == 5.0

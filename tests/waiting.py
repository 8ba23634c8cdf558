"""Waiting for what happens elsewhere, with a bound."""

from __future__ import annotations

import time
from collections.abc import Callable

POLL_SECONDS = 0.01


def wait_until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    """Polls until it holds; an AssertionError when it does not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{condition} did not come true in {seconds} s"
        time.sleep(POLL_SECONDS)

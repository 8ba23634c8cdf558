"""Waiting for descriptors, whatever their numbers (select() ends at 1024)."""

from __future__ import annotations

import math
import select
from collections.abc import Iterable


def wait_readable(filenos: Iterable[int], seconds: float) -> None:
    """Returns when one of them is readable, or after `seconds`."""
    poll = select.poll()
    for fileno in filenos:
        poll.register(fileno, select.POLLIN)
    poll.poll(math.ceil(max(0.0, seconds) * 1000))

"""Waiting for a peer on this machine without going to sleep at once.

To wake a thread on an idle core takes 25 µs and more, as much as most requests, and both sides of a
round trip do it. So whoever was answered soon the last time looks again and again for a moment
before it sleeps. Where cores are wanted by others that would be the worst thing to do: they get
the core between two looks, and whoever notices that sleeps at once for a while. ADR 0021.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from time import monotonic

POLL_SECONDS = 100e-6
"""How long one looks, unless a daemon is told otherwise."""
WAKE_SECONDS = 50e-6
"""What a wake-up may add to a wait that would have been short."""
CROWDED_SECONDS = 30e-6
"""Nobody else runs for so long between two looks unless there are fewer cores than threads."""
REST_SECONDS = 1.0
"""Without looks after that."""


class Polling:
    """When one side of a connection looks, and when it sleeps. `seconds` 0: it never looks, as on
    a single core."""

    def __init__(self, seconds: float, *, give_way: Callable[[], object] = os.sched_yield) -> None:
        self.seconds = seconds if len(os.sched_getaffinity(0)) > 1 else 0.0
        self._soon_seconds = self.seconds + WAKE_SECONDS if self.seconds else 0.0
        self._give_way = give_way
        self._rests_until = 0.0

    def is_worthwhile(self, last_wait: float, now: float) -> bool:
        """Whether the next wait, if it is like the last, ends while one looks."""
        return last_wait < self._soon_seconds and now >= self._rests_until

    def let_others_run(self) -> bool:
        """Between two looks. False: others want this core, so go to sleep."""
        begin = monotonic()
        self._give_way()
        end = monotonic()
        if end - begin < CROWDED_SECONDS:
            return True
        self._rests_until = end + REST_SECONDS
        return False

"""Waiting for a peer on this machine without going to sleep at once.

To wake a thread on an idle core takes 25 µs and more, as much as most requests, and both sides of a
round trip do it. So whoever was answered soon the last time looks again and again for a moment
before it sleeps. Where cores are wanted by others that would be the worst thing to do: they get
the core between two looks, and whoever notices them sleeps at once for a while. ADR 0021.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from time import monotonic

from moontide.transfer import Cores

POLL_SECONDS = 250e-6
"""How long one looks, unless a daemon is told otherwise."""
WAKE_SECONDS = 50e-6
"""What a wake-up may add to a wait that would have been short."""
CENSUS_SECONDS = 0.01
"""Between two counts of the threads that want a core."""
CROWDED_SECONDS = 200e-6
"""Others that run for so long between two looks want the core for themselves; what the kernel or
the peer has to do takes less."""
REST_RATIO = 100
"""Without looks after that, as a multiple of how long they ran: they cost a hundredth at most."""


class Polling:
    """When one side of a connection looks, and when it sleeps. `seconds` 0: it never looks, as on
    a single core."""

    def __init__(
        self,
        seconds: float,
        *,
        cores_are_enough: Callable[[], bool] | None = None,
        give_way: Callable[[], object] = os.sched_yield,
    ) -> None:
        self.seconds = seconds if len(os.sched_getaffinity(0)) > 1 else 0.0
        self._soon_seconds = self.seconds + WAKE_SECONDS if self.seconds else 0.0
        self._cores_are_enough = cores_are_enough or _cores_are_enough
        self._give_way = give_way
        self._rests_until = self._counted_until = 0.0

    def is_worthwhile(self, last_wait: float, now: float) -> bool:
        """Whether the next wait, if it is like the last, ends while one looks."""
        return last_wait < self._soon_seconds and now >= self._rests_until and self._may_look(now)

    def let_others_run(self) -> bool:
        """Between two looks. False: others want this core, so go to sleep."""
        begin = monotonic()
        self._give_way()
        end = monotonic()
        if end - begin < CROWDED_SECONDS:
            return True
        self._rests_until = end + REST_RATIO * (end - begin)
        return False

    def _may_look(self, now: float) -> bool:
        """Counts anew from time to time."""
        if now >= self._counted_until:
            self._counted_until = now + CENSUS_SECONDS
            if not self._cores_are_enough():
                self._rests_until = self._counted_until
        return now >= self._rests_until


def _cores_are_enough() -> bool:
    with contextlib.closing(Cores()) as cores:
        return cores.are_enough()

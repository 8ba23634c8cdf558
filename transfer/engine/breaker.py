"""Whether a path is worth trying, from how it went lately.

    CLOSED ──`failures` in a row──► OPEN ──pause over──► PROBING
       ▲                              ▲                     │
       └──────── anything went ───────┼──── no answer ──────┘
                                      └ the next pause is longer

While it is not CLOSED nobody's transfer tries the path; a probe of the engine's own finds out when
it works again.
"""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BreakerLimits:
    failures: int = 3
    first_pause_seconds: float = 0.1
    last_pause_seconds: float = 2.0
    probe_seconds: float = 1.0
    silent_seconds: float = 0.5  # what ends without an answer after so long counts as a failure


class Breaker:
    """Of one path. `rng` spreads the probes of many that broke at once."""

    def __init__(self, limits: BreakerLimits, rng: random.Random) -> None:
        self._limits = limits
        self._rng = rng
        self._failures = 0
        self._pause = limits.first_pause_seconds
        self._probe_at: float | None = None  # None while CLOSED
        self._probing = False

    @property
    def is_closed(self) -> bool:
        return self._probe_at is None

    @property
    def probe_at(self) -> float | None:
        """When the next probe is due; None: none is to be sent, or one is under way."""
        return None if self._probing else self._probe_at

    def succeeded(self) -> None:
        """The peer answered, be it with a refusal."""
        self._failures = 0
        self._pause = self._limits.first_pause_seconds
        self._probe_at = None
        self._probing = False

    def failed(self, now: float) -> None:
        self._failures += 1
        if self.is_closed and self._failures >= self._limits.failures:
            self._wait(now)

    def probe(self) -> None:
        """A probe is sent."""
        assert self.probe_at is not None, "one probe at a time, of a path that is broken"
        self._probing = True

    def probe_failed(self, now: float) -> None:
        if self._probing:  # else something went meanwhile
            self._probing = False
            self._wait(now)

    def _wait(self, now: float) -> None:
        self._probe_at = now + self._pause * self._rng.uniform(0.75, 1.25)
        self._pause = min(2 * self._pause, self._limits.last_pause_seconds)

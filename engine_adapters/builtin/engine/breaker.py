"""Stops asking a store that keeps failing, and finds out by itself when it is back.

CLOSED ──`threshold` failures in a row──► OPEN ──`cooldown_s` passed──► one call goes out
   ▲                                        ▲                              │
   └──────────────── succeeds ──────────────┴─────────── fails ────────────┘
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Breaker:
    """Pure: `now` is passed in (monotonic seconds)."""

    threshold: int = 3
    cooldown_s: float = 1.0
    opened: int = 0  # times it opened
    _failures: int = 0
    _retry_at: float | None = None  # None while closed

    @property
    def is_open(self) -> bool:
        return self._retry_at is not None

    def allows(self, now: float) -> bool:
        """True when a call may go out now. While open, one call each cool-down probes the store."""
        if self._retry_at is None:
            return True
        if now < self._retry_at:
            return False
        self._retry_at = now + self.cooldown_s
        return True

    def on_success(self) -> None:
        self._failures = 0
        self._retry_at = None

    def on_failure(self, now: float) -> None:
        """Failures while open change nothing: the next probe comes when it is due."""
        self._failures += 1
        if self._retry_at is None and self._failures >= self.threshold:
            self.opened += 1
            self._retry_at = now + self.cooldown_s

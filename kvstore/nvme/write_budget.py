"""How much may still be written to the disk: a rate, and a number of bytes a day (flash wears out).

Everything the tier writes is taken from it: entries, headers, removals, hot entries written anew
(not the index's own pages). What may not be put off is written whatever is left; new entries then
wait until that is made good.
"""

from __future__ import annotations

from typing import NamedTuple

BURST_SECONDS = 1.0
"""What was not used of the rate is kept for so long."""
DAY_SECONDS = 86400


class DayCount(NamedTuple):
    """Bytes written on a day, which is numbered from 1970 (UTC)."""

    day: int = 0
    num_bytes: int = 0

    def plus(self, num_bytes: int, day: int) -> DayCount:
        """A clock that was set back goes on with the day that had begun; one that was set back by
        more than a day was wrong before, and a new count begins."""
        if self._holds(day):
            return DayCount(self.day, self.num_bytes + num_bytes)
        return DayCount(day, num_bytes)

    def on(self, day: int) -> int:
        return self.num_bytes if self._holds(day) else 0

    def _holds(self, day: int) -> bool:
        return self.day - 1 <= day <= self.day


class WriteBudget:
    """Decides; never waits and reads no clock. None: no limit."""

    def __init__(self, *, bytes_per_second: int | None, bytes_per_day: int | None) -> None:
        self._rate = bytes_per_second
        self._daily = bytes_per_day
        self._tokens = BURST_SECONDS * (bytes_per_second or 0)
        self._refilled_at: float | None = None
        self._seen = 0  # of all bytes written

    @property
    def is_limited(self) -> bool:
        return self._rate is not None or self._daily is not None

    def observe(self, total_written: int, now: float) -> None:
        """`total_written` only grows; `now` is monotonic seconds."""
        spent, self._seen = total_written - self._seen, total_written
        if self._rate is not None:
            elapsed = 0.0 if self._refilled_at is None else max(now - self._refilled_at, 0.0)
            most = BURST_SECONDS * self._rate
            self._tokens = min(self._tokens + elapsed * self._rate, most) - spent
        self._refilled_at = now

    def allows(self, num_bytes: int, *, pending_bytes: int, written_today: int) -> bool:
        """Whether `num_bytes` more may be written. The rate lets one entry of any size go when
        something is left of it; a day's bytes are never exceeded by new entries."""
        if self._rate is not None and self._tokens <= pending_bytes:
            return False
        left = self.left_today(pending_bytes + written_today)
        return left is None or num_bytes <= left

    def left_today(self, written_today: int) -> int | None:
        """None: no limit."""
        return None if self._daily is None else max(self._daily - written_today, 0)

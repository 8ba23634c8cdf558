"""How a load comes along: the time in which something of it was on its way, and what has come."""

from __future__ import annotations

from collections import deque

from .load_choice import PATIENCE_S, longest_wait_s


class LoadProgress:
    """Pure: times are passed in (monotonic seconds). Time in which nothing was asked for, because
    what had come was not taken yet, does not count."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.done_bytes = 0
        self._asked: deque[int] = deque()  # bytes of each part under way, oldest first
        self._busy_since = self._last_end = 0.0
        self._busy_s = 0.0  # before that

    def asked(self, num_bytes: int, now: float) -> None:
        if not self._asked:
            self._busy_since = self._last_end = now
        self._asked.append(num_bytes)

    def came(self, num_bytes: int, ended_at: float) -> None:
        """Or failed. Parts mostly come in the order in which they were asked for."""
        self._asked.remove(num_bytes)
        self.done_bytes += num_bytes
        self._last_end = max(self._last_end, ended_at)
        if not self._asked:
            self._busy_s += self._last_end - self._busy_since

    def busy_s(self, now: float) -> float:
        return self._busy_s + (now - self._busy_since if self._asked else 0.0)

    def late_at(self, recompute_s: float) -> float:
        """When it is not worth waiting any more, unless something comes: by its pace so far, or
        because the next part alone has taken as long as computing it all."""
        if not self._asked:
            return float("inf")
        wait_s = longest_wait_s(
            done_bytes=self.done_bytes,
            next_bytes=self._asked[0],
            total_bytes=self.total_bytes,
            recompute_s=recompute_s,
        )
        by_pace = self._busy_since + wait_s - self._busy_s
        stalled = self._last_end + max(recompute_s, PATIENCE_S)
        return min(by_pace, stalled)

    def projected_s(self, now: float) -> float:
        """What all of it takes at least, if the next part came now."""
        by_now = self.done_bytes + (self._asked[0] if self._asked else 0)
        return self.busy_s(now) * self.total_bytes / by_now if by_now else 0.0

"""When a peer is too slow to be waited for."""

from __future__ import annotations

from ..errors import Unavailable

LEAST_BYTES = 64 << 10


class Pace:
    """At least 64 KiB, or the whole of what is due, in every `stall_seconds`; less is a stall.
    A trickle of single bytes holds nobody up for ever."""

    def __init__(self, stall_seconds: float, now: float) -> None:
        self._stall_seconds = stall_seconds
        self._started = now
        self._bytes = 0

    def restart(self, now: float) -> None:
        """What was due has come, or something new is due."""
        self._started = now
        self._bytes = 0

    def moved(self, num_bytes: int, now: float) -> None:
        self._bytes += num_bytes
        if self._bytes >= LEAST_BYTES:
            self.restart(now)

    def quiet(self, now: float) -> float:
        """Seconds since it began anew."""
        return now - self._started

    def left(self, now: float) -> float:
        """Seconds that may be waited. Raises Unavailable when there are none."""
        remaining = self._started + self._stall_seconds - now
        if remaining <= 0:
            raise Unavailable(f"the peer moved {self._bytes} bytes in {self._stall_seconds:g} s")
        return remaining

"""Time limits of calls."""

from __future__ import annotations

import time

from ..errors import InvalidRequest, StoreTimeout

MAX_TIMEOUT_SECONDS = 86400.0


def check_timeout(timeout_s: float, name: str = "timeout") -> float:
    """Raises InvalidRequest on anything but a number of seconds in (0, one day]."""
    if type(timeout_s) is float and 0 < timeout_s <= MAX_TIMEOUT_SECONDS:
        return timeout_s
    if not isinstance(timeout_s, int | float) or not 0 < timeout_s <= MAX_TIMEOUT_SECONDS:
        raise InvalidRequest(
            f"{name} of {timeout_s!r} seconds; give a number above 0 and at most "
            f"{MAX_TIMEOUT_SECONDS:g}"
        )
    return float(timeout_s)


class Deadline:
    """The monotonic moment at which a call gives up."""

    __slots__ = ("at", "timeout_s")

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = check_timeout(timeout_s)
        self.at = time.monotonic() + self.timeout_s

    def remaining(self) -> float:
        """Seconds left, never negative."""
        return max(self.at - time.monotonic(), 0.0)

    def check(self, what: str) -> float:
        """Seconds left. Raises StoreTimeout when none are."""
        left = self.at - time.monotonic()
        if left <= 0:
            raise StoreTimeout(f"{what} did not finish within {self.timeout_s:g} s")
        return left

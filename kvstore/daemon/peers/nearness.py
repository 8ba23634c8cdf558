"""How near another store is: the order in which those that hold the same are asked."""

from __future__ import annotations

import math

SAME_BOOT = 64
"""More than any round trip takes away: what runs under this kernel is reached through memory."""
FASTEST_SECONDS = 1e-6
DRIFT = 1.02
"""A round trip that was short once is believed a little less with each longer one."""


class Nearness:
    """Of one peer. Pure: told whether it runs under our kernel boot, and of each round trip."""

    def __init__(self) -> None:
        self.shares_boot = False
        self._seconds = math.inf

    def took(self, seconds: float) -> None:
        """A question that is answered at once."""
        self._seconds = min(self._seconds * DRIFT, max(seconds, FASTEST_SECONDS))

    @property
    def closeness(self) -> int:
        """Higher is nearer. Round trips within a factor of two count as equal; one that is not
        known yet is the longest."""
        if math.isinf(self._seconds):
            distance = SAME_BOOT - 1
        else:
            distance = min(round(math.log2(self._seconds / FASTEST_SECONDS)), SAME_BOOT - 1)
        return (SAME_BOOT if self.shares_boot else 0) - distance

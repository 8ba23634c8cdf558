"""How likely what comes new is used again, learned from what came before."""

from __future__ import annotations

PRIOR = 0.3
PRIOR_WEIGHT = 16.0
"""So many entries' worth of belief in the prior."""
FADING_ENTRIES = 8192.0
"""Beyond so many entries old ones count half, and half again: workloads change."""


class Chance:
    def __init__(self) -> None:
        self._entries = self._hits = 0.0

    def count(self, num_entries: int) -> None:
        """So many came; fewer than none: counted by mistake."""
        self._entries = max(self._entries + num_entries, self._hits)
        while self._entries > FADING_ENTRIES:
            self._entries /= 2
            self._hits /= 2

    def hit(self) -> None:
        """One of those counted was used, for the first time."""
        self._hits = min(self._hits + 1.0, self._entries)

    def estimate(self, prior: float = PRIOR) -> float:
        """Above 0. With little evidence it is near the prior."""
        return (self._hits + PRIOR_WEIGHT * prior) / (self._entries + PRIOR_WEIGHT)

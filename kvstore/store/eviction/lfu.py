"""Least frequently used, the oldest of those first. For comparison."""

from __future__ import annotations

from .links import Links
from .policy import QueuePolicy

MAX_USES = 32
"""Uses beyond are not told apart."""


class LfuPolicy(QueuePolicy):
    """One queue for each number of uses; counts stay while pinned."""

    def __init__(self, links: Links) -> None:
        super().__init__(links, [float(uses) for uses in range(1, MAX_USES + 1)])
        self._uses = links.marks

    def insert(self, slot: int) -> None:
        self._uses[slot] = 0
        super().insert(slot)

    def insert_used(self, slot: int) -> None:
        uses = min(self._uses[slot] + 1, MAX_USES - 1)
        self._uses[slot] = uses
        self._queues[uses].push(slot)

"""Least recently used."""

from __future__ import annotations

from .links import Links, Slots
from .policy import QueuePolicy


class LruPolicy(QueuePolicy):
    def __init__(self, links: Links) -> None:
        super().__init__(links, [1.0])

    def insert_many(self, slots: Slots) -> None:
        self._queues[0].push_many(slots)

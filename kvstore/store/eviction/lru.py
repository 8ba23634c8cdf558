"""Least recently used."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .links import Links
from .policy import QueuePolicy


class LruPolicy(QueuePolicy):
    def __init__(self, links: Links) -> None:
        super().__init__(links, [1.0])

    def insert_many(self, slots: NDArray[np.int64]) -> None:
        self._queues[0].push_many(slots)

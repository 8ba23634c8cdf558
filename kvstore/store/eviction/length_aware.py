"""Ends of long chains first: the LengthAwareCache of the Mooncake paper (arXiv 2407.00079), which
is LFU that among equals evicts blocks that occur later in requests. For comparison."""

from __future__ import annotations

from .links import Links
from .policy import QueuePolicy

MAX_USES = 8
"""Uses beyond are not told apart."""
DEPTHS = 16
"""Classes of depth: 0, 1, 2–3, 4–7, … blocks before it."""


class LengthAwarePolicy(QueuePolicy):
    """A queue for each (uses, class of depth): rarest uses first, then deepest, then oldest."""

    def __init__(self, links: Links) -> None:
        count = MAX_USES * DEPTHS
        super().__init__(links, [1.0 + index for index in range(count)])
        self._uses = links.marks
        self._depth = links.chains.depth

    def insert(self, slot: int) -> None:
        self._uses[slot] = 0
        self._push(slot)

    def insert_used(self, slot: int) -> None:
        self._uses[slot] = min(self._uses[slot] + 1, MAX_USES - 1)
        self._push(slot)

    def _push(self, slot: int) -> None:
        depth = min(self._depth[slot].bit_length(), DEPTHS - 1)
        self._queues[self._uses[slot] * DEPTHS + DEPTHS - 1 - depth].push(slot)

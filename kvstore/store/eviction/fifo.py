"""First in, first out. For comparison."""

from __future__ import annotations

from .lru import LruPolicy


class FifoPolicy(LruPolicy):
    """By the time an entry became evictable: one that was pinned meanwhile counts as new, since a
    queue has no way back to its old place."""

    def touch(self, slot: int) -> None:
        """Does not matter."""

    def refresh(self, slot: int) -> None:
        """Does not matter."""

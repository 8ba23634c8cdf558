"""What every eviction policy promises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class EvictionPolicy(Protocol):
    """The order in which one arena's evictable entries (committed and unpinned) go. It never drops
    anything itself: its user removes the victim. Entries inserted as soft go last. Every call but
    `clear`, `insert_many`, iteration and check takes a bounded number of steps, amortised."""

    capacity_bytes: int
    """Of the arena, which sets it."""

    def insert(self, slot: int) -> None:
        """A new entry."""

    def insert_many(self, slots: NDArray[np.int64]) -> None:
        """As `insert` of each in this order, by columns: for batches of hundreds."""

    def insert_used(self, slot: int) -> None:
        """One that was in use until now (unpinned)."""

    def insert_soft(self, slot: int) -> None:
        """One that is to be evicted last."""

    def touch(self, slot: int) -> None:
        """It was hit. Nothing happens to one that is not evictable now (as in the next two)."""

    def refresh(self, slot: int) -> None:
        """What depends on it was stored: it is to stay as long as that."""

    def remove(self, slot: int) -> None:
        """It is pinned or dropped."""

    def coldest(self) -> int:
        """The next victim, or NO_SLOT."""

    def __iter__(self) -> Iterator[int]:
        """All of them, in the order they would go."""

    def clear(self) -> None:
        """Forgets all of them; the caller resets their links."""

    def check_integrity(self) -> list[str]:
        """Differences between its links and its accounts."""

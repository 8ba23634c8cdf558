"""Entries that may come back although the index does not have them."""

from __future__ import annotations

from collections.abc import Iterable

MAX_DOUBTS = 100_000


class Doubts:
    """What a write or a removal named that failed on its way: the log may have it, and then the
    next start finds it. So it is removed like anything that is there. Beyond MAX_DOUBTS everything
    is in doubt. The writer's thread changes it, any thread asks."""

    def __init__(self) -> None:
        self._entries: set[bytes] = set()
        self._all = False

    def __contains__(self, entry: bytes) -> bool:
        return self._all or entry in self._entries

    def raise_for(self, entries: Iterable[bytes]) -> None:
        self._entries.update(entries)
        if len(self._entries) > MAX_DOUBTS:
            self._all = True
            self._entries.clear()

    def settle(self, entries: Iterable[bytes]) -> None:
        """Log and index agree about these now."""
        if self._entries:
            self._entries.difference_update(entries)

    def settle_all(self) -> None:
        self._entries.clear()
        self._all = False

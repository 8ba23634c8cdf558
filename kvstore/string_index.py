"""Which locations hold which string entries: the part of the index that only store daemons need.

One set of entry ids a (stream, location): about 90 bytes an entry beside its key.
"""

from __future__ import annotations

from collections.abc import Iterable

Location = tuple[str, str]
"""(instance, tier)"""


class StringIndex:
    """Bounded by `max_entries` (entry, location) pairs; with 0 it takes nothing. What does not fit
    is left out: the index may miss, never invent."""

    def __init__(self, max_entries: int) -> None:
        self.max_entries = max_entries
        self.num_entries = 0
        self._held: dict[str, dict[Location, set[bytes]]] = {}

    def store(self, stream: str, location: Location, entries: Iterable[bytes]) -> int:
        """Returns how many were left out."""
        held = self._held.setdefault(stream, {}).setdefault(location, set())
        before, skipped = len(held), 0
        for entry in entries:
            if self.num_entries + len(held) - before < self.max_entries:
                held.add(entry)
            else:
                skipped += entry not in held
        self.num_entries += len(held) - before
        self._drop_if_empty(stream, location)
        return skipped

    def remove(self, stream: str, location: Location, entries: Iterable[bytes]) -> None:
        held = self._held.get(stream, {}).get(location)
        if held is None:
            return
        before = len(held)
        held.difference_update(entries)
        self.num_entries -= before - len(held)
        self._drop_if_empty(stream, location)

    def clear(self, stream: str, location: Location) -> None:
        self.num_entries -= len(self._held.get(stream, {}).pop(location, ()))

    def drop_stream(self, stream: str) -> None:
        self.num_entries -= sum(map(len, self._held.pop(stream, {}).values()))

    def holders(self, entry: bytes) -> list[Location]:
        """Each location once, in no order that means anything."""
        found = {
            location: None
            for held in self._held.values()
            for location, entries in held.items()
            if entry in entries
        }
        return list(found)

    def check_integrity(self) -> None:
        sets = [entries for held in self._held.values() for entries in held.values()]
        assert all(sets)
        assert self.num_entries == sum(map(len, sets)) <= self.max_entries

    def _drop_if_empty(self, stream: str, location: Location) -> None:
        if not self._held[stream][location]:
            del self._held[stream][location]

"""Which entries of the index are not to be seen, though they are still in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import TypeVar

from .operations import Clear, Drop, Operation, Write
from .records import EntryRecord

MAX_BURIED = 100_000
T = TypeVar("T", bound=Hashable)


class Hiding:
    """What pending operations name is hidden until they are done. What a removal named that could
    not be made durable is buried: hidden for the life of the process up to the generation it had
    then. Used by the thread that uses the tier."""

    def __init__(self) -> None:
        self._pending: Counter[bytes] = Counter()
        self._pending_clears: Counter[str | None] = Counter()  # None: everything
        self._buried: dict[bytes, int] = {}  # entry → first generation to be seen again
        self._buried_clears: dict[str | None, int] = {}

    def begin(self, operation: Operation) -> None:
        if isinstance(operation, Write):
            self._pending[operation.write.entry] += 1
        elif isinstance(operation, Drop):
            self._pending.update(operation.entries)
        elif isinstance(operation, Clear):
            self._pending_clears[operation.namespace] += 1

    def end(self, operation: Operation, *, is_durable: bool, next_sequence: int) -> None:
        if isinstance(operation, Write):
            _take_away(self._pending, [operation.write.entry])
        elif isinstance(operation, Drop):
            _take_away(self._pending, operation.entries)
            if not is_durable:
                self._bury(operation, next_sequence)
        elif isinstance(operation, Clear):
            _take_away(self._pending_clears, [operation.namespace])
            if not is_durable:
                self._buried_clears[operation.namespace] = next_sequence

    def is_pending(self, entry: bytes) -> bool:
        """A write or a removal of it is under way."""
        return entry in self._pending

    @property
    def hides_by_generation(self) -> bool:
        """Whether more than `is_pending` is needed to say what is hidden."""
        return bool(self._pending_clears or self._buried or self._buried_clears)

    def hides(self, record: EntryRecord) -> bool:
        if self._pending or self._buried:
            entry = record.entry
            if entry in self._pending or record.sequence < self._buried.get(entry, 0):
                return True
        if not self._pending_clears and not self._buried_clears:
            return False
        namespace = record.namespace
        if None in self._pending_clears or namespace in self._pending_clears:
            return True
        buried = self._buried_clears
        return record.sequence < max(buried.get(None, 0), buried.get(namespace, 0))

    def _bury(self, drop: Drop, next_sequence: int) -> None:
        if len(self._buried) + len(drop.entries) > MAX_BURIED:
            self._buried.clear()
            self._buried_clears[None] = next_sequence
        else:
            self._buried.update(dict.fromkeys(drop.entries, next_sequence))


def _take_away(counts: Counter[T], names: Iterable[T]) -> None:
    """One of each. (`-=` of a Counter walks all of it.)"""
    for name in names:
        counts[name] -= 1
        if counts[name] <= 0:
            del counts[name]

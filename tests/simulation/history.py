"""What clients asked and were told, and whether that may be.

A value may be read from the moment its put began until a change that surely came after it was
answered: a replace or removal of its key, or a clear, that began when the put had ended. What was
not answered may take effect at any later time, or never. A miss is always allowed: this is a
cache.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from enum import Enum

EVERY_KEY = "*"
CLEAR_SECONDS = 1.0
"""A store that is cut off from the one that was asked to clear reads of it in the membership."""


class Kind(Enum):
    PUT = "put"
    REPLACE = "replace"
    REMOVE = "remove"
    CLEAR = "clear"
    GET = "get"


CHANGES = (Kind.REPLACE, Kind.REMOVE, Kind.CLEAR)


class Fate(Enum):
    DONE = "done"
    NOTHING = "nothing"  # surely without effect
    UNKNOWN = "unknown"


@dataclass
class Call:
    """One call. `value` is what was put, or what was read (None: a miss). A clear is of every
    key."""

    client: str
    node: str
    kind: Kind
    key: str
    value: bytes | None
    begin: float
    end: float = math.inf
    fate: Fate = Fate.UNKNOWN

    @property
    def in_force_at(self) -> float:
        """Of a change that was answered."""
        return self.end + (CLEAR_SECONDS if self.kind is Kind.CLEAR else 0.0)

    def __str__(self) -> str:
        value = b"-" if self.value is None else self.value[:24]
        return (
            f"{self.begin:10.6f}..{self.end:10.6f} {self.client} at {self.node} {self.kind.value} "
            f"{self.key} {value!r} {self.fate.value}"
        )


class History:
    def __init__(self) -> None:
        self._calls: dict[str, list[Call]] = defaultdict(list)
        self.counts: dict[str, int] = defaultdict(int)

    def add(self, call: Call) -> Call:
        self._calls[call.key].append(call)
        return call

    def wrong(self) -> list[str]:
        """Each read that may not be, with all calls of its key that bear on it."""
        clears = self._calls.pop(EVERY_KEY, [])
        return [
            text
            for calls in self._calls.values()
            for read in calls
            if read.kind is Kind.GET and read.value is not None
            for text in self._wrong(read, read.value, [*calls, *clears])
        ]

    def _wrong(self, read: Call, value: bytes, calls: list[Call]) -> list[str]:
        writes = (Kind.PUT, Kind.REPLACE)
        put = next((call for call in calls if call.kind in writes and call.value == value), None)
        if put is None:
            return [f"never put: {read}"]
        if put.fate is Fate.NOTHING:
            return [f"put without effect: {put}\n  {read}"]
        if put.begin > read.end:
            return [f"read before it was put: {put}\n  {read}"]
        return [
            f"superseded:\n  {put}\n  {change}\n  {read}"
            for change in calls
            if change.kind in CHANGES
            and change.fate is Fate.DONE
            and put.end < change.begin
            and change.in_force_at < read.begin
        ][:1]

"""What clients asked and were told, and whether that may be.

A value may be read from the moment its put began until a change that surely came after it was
answered: a replace or removal of its key that began when the put had ended. What was not answered
may take effect at any later time, or never. A miss is always allowed: this is a cache.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    PUT = "put"
    REPLACE = "replace"
    REMOVE = "remove"
    GET = "get"


class Fate(Enum):
    DONE = "done"
    NOTHING = "nothing"  # surely without effect
    UNKNOWN = "unknown"


@dataclass
class Call:
    """One call. `value` is what was put, or what was read (None: a miss)."""

    client: str
    kind: Kind
    key: str
    value: bytes | None
    begin: float
    end: float = math.inf
    fate: Fate = Fate.UNKNOWN

    def __str__(self) -> str:
        value = b"-" if self.value is None else self.value[:24]
        return (
            f"{self.begin:10.6f}..{self.end:10.6f} {self.client} {self.kind.value} {self.key} "
            f"{value!r} {self.fate.value}"
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
        return [text for calls in self._calls.values() for text in _wrong_of(calls)]


def _wrong_of(calls: list[Call]) -> list[str]:
    written = {call.value: call for call in calls if call.kind in (Kind.PUT, Kind.REPLACE)}
    changes = [
        call
        for call in calls
        if call.kind in (Kind.REPLACE, Kind.REMOVE) and call.fate is Fate.DONE
    ]
    found = []
    for read in calls:
        if read.kind is not Kind.GET or read.value is None:
            continue
        put = written.get(read.value)
        if put is None:
            found.append(f"never put: {read}")
        elif put.fate is Fate.NOTHING:
            found.append(f"put without effect: {put}\n  {read}")
        elif put.begin > read.end:
            found.append(f"read before it was put: {put}\n  {read}")
        else:
            found += [
                f"superseded:\n  {put}\n  {change}\n  {read}"
                for change in changes
                if put.end < change.begin and change.end < read.begin
            ][:1]
    return found

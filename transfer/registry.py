"""Segments a process serves to its peers."""

from __future__ import annotations

import enum
import threading
from dataclasses import dataclass

from .errors import InvalidRequest, OutOfRange, ReadOnly, UnknownSegment
from .types import Opcode


class Access(enum.Enum):
    """What a peer may do with a segment."""

    READ = "read"
    LANDING = "landing"  # read and write


@dataclass(slots=True, eq=False)
class _Entry:
    view: memoryview
    access: Access
    borrowed: int = 0


class SegmentRegistry:
    """Thread-safe; changes at run time. The views stay the caller's, who keeps their memory mapped
    until `remove` said that it is let go."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[int, _Entry] = {}
        self._leaving: dict[int, list[_Entry]] = {}

    def add(self, segment: int, view: memoryview, access: Access = Access.READ) -> None:
        """Raises InvalidRequest when the index is taken or the view cannot serve."""
        if view.format != "B" or view.ndim != 1 or not view.c_contiguous:
            raise InvalidRequest(f"segment {segment}: give a contiguous view of bytes")
        if access is Access.LANDING and view.readonly:
            raise InvalidRequest(f"landing segment {segment} is mapped read-only")
        with self._lock:
            if segment in self._entries:
                raise InvalidRequest(f"segment {segment} is registered; remove it first")
            self._entries[segment] = _Entry(view, access)

    def remove(self, segment: int) -> bool:
        """No request finds it from now on. True when nothing touches its memory any more, else ask
        `is_idle` again. Unknown segments are idle."""
        with self._lock:
            entry = self._entries.pop(segment, None)
            if entry is not None and entry.borrowed:
                self._leaving.setdefault(segment, []).append(entry)
            return segment not in self._leaving

    def is_idle(self, segment: int) -> bool:
        """No transfer touches memory of this index, or none that was removed under it."""
        with self._lock:
            entry = self._entries.get(segment)
            return segment not in self._leaving and (entry is None or not entry.borrowed)

    def borrow(self, opcode: Opcode, segment: int, offset: int, length: int) -> Borrowed:
        """The memory of a span, until it is given back. Raises UnknownSegment, OutOfRange,
        ReadOnly."""
        with self._lock:
            entry = self._entries.get(segment)
            if entry is None:
                raise UnknownSegment(f"segment {segment} is not registered here")
            check_span(
                opcode, segment, range(offset, offset + length), entry.view.nbytes, entry.access
            )
            entry.borrowed += 1
            return Borrowed(self, segment, entry, entry.view[offset : offset + length])

    def give_back(self, borrowed: Borrowed) -> None:
        with self._lock:
            entry = borrowed.entry
            entry.borrowed -= 1
            leaving = self._leaving.get(borrowed.segment)
            if not entry.borrowed and leaving is not None and entry in leaving:
                leaving.remove(entry)
                if not leaving:
                    del self._leaving[borrowed.segment]


def check_span(
    opcode: Opcode, segment: int, span: range, segment_bytes: int, access: Access
) -> None:
    """Whether a request may have these bytes of a segment. Raises OutOfRange, ReadOnly."""
    if span.stop > segment_bytes:
        raise OutOfRange(
            f"bytes {span.start}..{span.stop} of segment {segment}, which has {segment_bytes}"
        )
    if opcode is Opcode.WRITE and access is not Access.LANDING:
        raise ReadOnly(f"segment {segment} is no landing segment")


@dataclass(slots=True, eq=False)
class Borrowed:
    """A span in use; `release` exactly once."""

    registry: SegmentRegistry
    segment: int
    entry: _Entry
    view: memoryview

    def release(self) -> None:
        self.view.release()
        self.registry.give_back(self)

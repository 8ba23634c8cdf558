"""Bytes on their way into a region: what lies well in memory goes to disk from there."""

from __future__ import annotations

from moontide.transfer import aligned_buffer, copy, is_aligned
from moontide.transfer.types import PAGE_BYTES, align_up

from .storage import RegionFile

STAGE_BYTES = 4 << 20
WRITE_BYTES = 16 << 20
"""A system call takes about so much: a disk works at its full speed, and a thread that waits for
the interpreter after each call does so seldom."""
LEAST_STRAIGHT_BYTES = 64 << 10
"""Copying less is cheaper than one more vector of a system call."""
_ZEROS = bytes(PAGE_BYTES)


class Stage:
    """Puts bytes at growing offsets of a file. Long pieces of whole pages are written from where
    they lie, so they stay unchanged until `finish`; all others are gathered in an aligned buffer.
    The buffer is reused: one thread."""

    def __init__(self) -> None:
        self._buffer = aligned_buffer(STAGE_BYTES)
        self._used = 0  # of the buffer, by `_pieces` and what was gathered since
        self._gathered_from = 0  # where in the buffer the newest gathered bytes begin
        self._pieces: list[memoryview] = []
        self._file: RegionFile | None = None
        self._start = self.end = 0

    def begin(self, file: RegionFile, offset: int) -> None:
        """`offset` is page-aligned. What an earlier batch left unwritten is forgotten."""
        self._file, self._start, self.end = file, offset, offset
        self._forget()

    def put(self, offset: int, data: memoryview | bytes) -> None:
        """`offset` is not before `end`; what lies between becomes zeros."""
        view = memoryview(data)
        self._fill(offset - self.end)
        if view.nbytes >= LEAST_STRAIGHT_BYTES and offset % PAGE_BYTES == 0 and is_aligned(view):
            self._append_straight(view)
        else:
            self._gather(view)

    def finish(self) -> int:
        """Writes the rest, padded to a page; returns where it ends."""
        self._fill(align_up(self.end, PAGE_BYTES) - self.end)
        if self.end > self._start:
            self._write()
        return self.end

    def _fill(self, num_bytes: int) -> None:
        """Less than a page of zeros."""
        if num_bytes:
            self._gather(memoryview(_ZEROS)[:num_bytes])

    def _append_straight(self, view: memoryview) -> None:
        while view.nbytes:
            piece = view[: self._start + WRITE_BYTES - self.end]
            self._end_gathered()
            self._pieces.append(piece)
            self.end += piece.nbytes
            view = view[piece.nbytes :]
            self._write_if_full()

    def _gather(self, view: memoryview) -> None:
        while view.nbytes:
            piece = view[: STAGE_BYTES - self._used]
            copy(self._buffer[self._used : self._used + piece.nbytes], piece)
            self._used += piece.nbytes
            self.end += piece.nbytes
            view = view[piece.nbytes :]
            self._write_if_full()

    def _write_if_full(self) -> None:
        """Only where what is to be written ends with a page."""
        is_full = self._used == STAGE_BYTES or self.end - self._start >= WRITE_BYTES
        if is_full and self.end % PAGE_BYTES == 0:
            self._write()

    def _write(self) -> None:
        assert self._file is not None
        self._end_gathered()
        try:
            self._file.write_from(self._pieces, self._start)
        finally:
            self._forget()
        self._start = self.end

    def _end_gathered(self) -> None:
        if self._used > self._gathered_from:
            self._pieces.append(self._buffer[self._gathered_from : self._used])
            self._gathered_from = self._used

    def _forget(self) -> None:
        self._pieces = []
        self._used = self._gathered_from = 0

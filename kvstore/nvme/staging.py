"""Bytes on their way into a region: what lies well in memory goes to disk from there."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from moontide.transfer import aligned_buffer, copy, is_aligned
from moontide.transfer.types import PAGE_BYTES, align_up

from .assistant import Assistant
from .storage import DISK_ERRORS, RegionFile

STAGE_BYTES = 4 << 20
WRITE_BYTES = 8 << 20
"""A system call takes about so much: a thread that waits for the interpreter after each call does
so seldom."""
LEAST_STRAIGHT_BYTES = 64 << 10
"""Copying less is cheaper than one more vector of a system call."""
_ZEROS = bytes(PAGE_BYTES)


class Stage:
    """Puts bytes at growing offsets of a file. Long pieces of whole pages are written from where
    they lie, so they stay unchanged until `finish`, two writes at a time; all others are gathered
    in an aligned buffer. The buffer is reused: one thread. Methods raise one of DISK_ERRORS;
    nothing is being written then."""

    def __init__(self) -> None:
        self._assistant = Assistant("nvme-writer-2", most=1)
        self._error: Exception | None = None  # the assistant's
        self._buffer = aligned_buffer(STAGE_BYTES)
        self._used = 0  # of the buffer, by `_pieces` and what was gathered since
        self._gathered_from = 0  # where in the buffer the newest gathered bytes begin
        self._pieces: list[memoryview] = []
        self._file: RegionFile | None = None
        self._start = self.end = 0

    def begin(self, file: RegionFile, offset: int) -> None:
        """`offset` is page-aligned. What an earlier batch left unwritten is forgotten."""
        self._assistant.drain()
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
        self._settle()
        return self.end

    def close(self) -> None:
        self._assistant.close()

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
        if not is_full or self.end % PAGE_BYTES:
            return
        if self._used or not self._assistant.is_idle:
            self._write()
        else:
            self._write_aside()

    def _write_aside(self) -> None:
        assert self._file is not None
        write = partial(self._assist, self._file, self._pieces, self._start)
        if not self._assistant.give(write):
            self._settle()
        self._pieces, self._start = [], self.end

    def _settle(self) -> None:
        """Waits for the assistant; raises what it met."""
        if not self._assistant.drain():
            assert self._error is not None
            raise self._error

    def _write(self) -> None:
        assert self._file is not None
        self._end_gathered()
        try:
            self._file.write_from(self._pieces, self._start)
        except BaseException:
            self._assistant.drain()
            raise
        finally:
            self._forget()
        self._start = self.end

    def _assist(self, file: RegionFile, pieces: Sequence[memoryview], offset: int, _: bool) -> bool:
        """On the assistant's thread."""
        try:
            file.write_from(pieces, offset)
        except DISK_ERRORS as error:
            self._error = error
            return False
        return True

    def _end_gathered(self) -> None:
        if self._used > self._gathered_from:
            self._pieces.append(self._buffer[self._gathered_from : self._used])
            self._gathered_from = self._used

    def _forget(self) -> None:
        self._pieces = []
        self._used = self._gathered_from = 0

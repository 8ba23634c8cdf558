"""Bytes on their way into a region: what lies well in memory goes to disk from there."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Sequence

from moontide.transfer import aligned_buffer, copy, is_aligned
from moontide.transfer.types import PAGE_BYTES, align_up

from .assistant import Assistant
from .storage import DISK_ERRORS, RegionFile

logger = logging.getLogger(__name__)
STAGE_BYTES = 4 << 20
WRITE_BYTES = 8 << 20
"""A system call takes about so much: a thread that waits for the interpreter after each call does
so seldom."""
MAX_AHEAD = 2
"""Writes that one thread has to do, of which one is under way."""
LEAST_STRAIGHT_BYTES = 64 << 10
"""Copying less is cheaper than one more vector of a system call."""
_ZEROS = bytes(PAGE_BYTES)


class AsideWrite:
    """One write by another thread."""

    def __init__(self, file: RegionFile, pieces: Sequence[memoryview], offset: int) -> None:
        self._file = file
        self._pieces = pieces
        self._offset = offset
        self._over = threading.Event()
        self._error: Exception | None = None

    def run(self, _: bool) -> bool:
        """On that thread. What it met is told by `wait`, not by the thread."""
        try:
            self._file.write_from(self._pieces, self._offset)
        except DISK_ERRORS as error:
            self._error = error
        except Exception as error:  # boundary of the thread: the batch fails
            logger.exception("nvme_write_failed offset=%d", self._offset)
            self._error = error
        finally:
            self._over.set()
        return True

    def wait(self) -> Exception | None:
        """Until it is over; what it met."""
        self._over.wait()
        return self._error


class Stage:
    """Puts bytes at growing offsets of a file. Long pieces of whole pages are written from where
    they lie, by two threads that may be at it while the next batch is put: the disk always has
    something to do. So they stay unchanged until what `finish` returns is over. All others are
    gathered in an aligned buffer, which is reused: one thread puts. Methods raise one of
    DISK_ERRORS."""

    def __init__(self) -> None:
        self._assistants = [
            Assistant(f"nvme-writer-{number}", most=MAX_AHEAD) for number in range(1, 3)
        ]
        self._turns = itertools.cycle(self._assistants)
        self._aside: list[AsideWrite] = []  # of this batch
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

    def finish(self) -> Sequence[AsideWrite]:
        """Writes the rest, padded to a page, up to what is now `end`; returns what is still being
        written."""
        self._fill(align_up(self.end, PAGE_BYTES) - self.end)
        if self.end > self._start:
            self._write_pieces()
        aside, self._aside = self._aside, []
        return aside

    def give_up(self) -> None:
        """Nothing of this batch is being written afterwards."""
        for write in self._aside:
            write.wait()
        self._aside = []

    def close(self) -> None:
        for assistant in self._assistants:
            assistant.close()

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
            self._write_pieces()

    def _write_pieces(self) -> None:
        """What lies in the buffer is written here: that is needed again."""
        assert self._file is not None
        self._end_gathered()
        if self._used:
            self._file.write_from(self._pieces, self._start)
        else:
            aside = AsideWrite(self._file, self._pieces, self._start)
            next(self._turns).give(aside.run)
            self._aside.append(aside)
        self._forget()
        self._start = self.end

    def _end_gathered(self) -> None:
        if self._used > self._gathered_from:
            self._pieces.append(self._buffer[self._gathered_from : self._used])
            self._gathered_from = self._used

    def _forget(self) -> None:
        self._pieces = []
        self._used = self._gathered_from = 0

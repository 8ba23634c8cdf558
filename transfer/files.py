"""Files read and written past the page cache.

A cache of KV blocks gains nothing from the page cache and would push everything else out of it. So
aligned requests use O_DIRECT; where the file system has none, or a request is not aligned, the page
cache is used and told to let go (posix_fadvise).
"""

from __future__ import annotations

import contextlib
import enum
import errno
import mmap
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from .errors import FileFailed
from .types import PAGE_BYTES, align_up

_MAX_VECTOR = 512  # buffers a system call; Linux takes 1024
_Vectored = Callable[[int, Sequence[memoryview], int], int]


class FileAccess(enum.Enum):
    """What a `DirectFile` is opened for. CREATE fails when the file is already there."""

    READ = os.O_RDONLY
    WRITE = os.O_RDWR
    CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL


def aligned_buffer(num_bytes: int) -> memoryview:
    """Writable zeroed memory that starts on a page, as O_DIRECT needs it; whole pages, at least
    `num_bytes`. Freed with its last view."""
    return memoryview(mmap.mmap(-1, align_up(max(num_bytes, 1), PAGE_BYTES)))


def is_aligned(buffer: memoryview) -> bool:
    """Whether address and length are whole pages."""
    if buffer.nbytes % PAGE_BYTES:
        return False
    address: int = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
    return address % PAGE_BYTES == 0


class DirectFile:
    """One file, used by any number of threads. `is_direct` says whether aligned requests (offset,
    address and length whole pages) bypass the page cache; it is probed at open, and again by the
    first request a file system refuses. Every method raises FileFailed with the errno."""

    def __init__(self, path: Path, access: FileAccess) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._buffered = -1  # opened when first needed
        self._flags = access.value & ~(os.O_CREAT | os.O_EXCL) | os.O_CLOEXEC
        flags = access.value | os.O_CLOEXEC
        try:
            self._file = os.open(path, flags, 0o600)
        except OSError as error:
            raise FileFailed(error, f"open {path}") from error
        self.is_direct = self._become_direct()

    def size(self) -> int:
        try:
            return os.fstat(self._file).st_size
        except OSError as error:
            raise FileFailed(error, f"stat {self.path}") from error

    def read_into(self, buffers: Sequence[memoryview], offset: int) -> None:
        """Fills the buffers one after the other from `offset`. A file that ends before is an error
        (errno EIO); the buffers' contents are then undefined."""
        self._move(os.preadv, buffers, offset)

    def write_from(self, buffers: Sequence[memoryview], offset: int) -> None:
        """Writes the buffers one after the other from `offset`. Durable only after `sync`."""
        self._move(os.pwritev, buffers, offset)

    def reserve(self, num_bytes: int) -> None:
        """Allocates the first `num_bytes`, so that writing them cannot lack space later."""
        try:
            os.posix_fallocate(self._file, 0, num_bytes)
        except OSError as error:
            raise FileFailed(error, f"reserve {num_bytes} bytes for {self.path}") from error

    def truncate(self, num_bytes: int) -> None:
        try:
            os.ftruncate(self._file, num_bytes)
        except OSError as error:
            raise FileFailed(error, f"truncate {self.path} to {num_bytes} bytes") from error

    def sync(self) -> None:
        """Everything written and the file's size are on the medium when this returns."""
        try:
            os.fdatasync(self._file)
        except OSError as error:
            raise FileFailed(error, f"sync {self.path}") from error

    def close(self) -> None:
        """Idempotent. No request may be under way."""
        for descriptor in (self._file, self._buffered):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._buffered = -1

    def _move(self, call: _Vectored, buffers: Sequence[memoryview], offset: int) -> None:
        what = "read" if call is os.preadv else "write"
        views = [view for view in buffers if view.nbytes]
        direct = all(map(is_aligned, views))
        while views:
            head = views[:_MAX_VECTOR]
            use_direct = direct and offset % PAGE_BYTES == 0 and self.is_direct
            try:
                moved = call(self._file if use_direct else self._through_cache(), head, offset)
            except OSError as error:
                if use_direct and error.errno == errno.EINVAL:
                    direct = self.is_direct = False
                    continue
                raise FileFailed(error, f"{what} {self.path} at {offset}") from error
            if moved == 0:
                short = OSError(errno.EIO, "the file ends before")
                raise FileFailed(short, f"{what} {self.path} at {offset}")
            if not use_direct:
                self._let_go(offset, moved)
            offset += moved
            direct = direct and moved % PAGE_BYTES == 0
            views = _after(views, moved)

    def _become_direct(self) -> bool:
        try:
            direct = os.open(self._self_path, self._flags | os.O_DIRECT)
        except OSError:  # such a file system has no O_DIRECT
            return False
        try:
            os.preadv(direct, [aligned_buffer(PAGE_BYTES)], 0)
        except OSError:
            os.close(direct)
            return False
        os.close(self._file)
        self._file = direct
        return True

    def _through_cache(self) -> int:
        with self._lock:
            if self._buffered < 0:
                self._buffered = os.open(self._self_path, self._flags)
            return self._buffered

    @property
    def _self_path(self) -> str:
        """Reaches the file whatever became of its name."""
        return f"/proc/self/fd/{self._file}"

    def _let_go(self, offset: int, num_bytes: int) -> None:
        """Advice only: dirty pages stay until they are written."""
        with contextlib.suppress(OSError):
            os.posix_fadvise(self._buffered, offset, num_bytes, os.POSIX_FADV_DONTNEED)


def sync_directory(path: Path) -> None:
    """Makes names created, renamed or removed in `path` durable. Raises FileFailed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise FileFailed(error, f"sync directory {path}") from error


def _after(views: list[memoryview], num_bytes: int) -> list[memoryview]:
    """What is left of `views` without their first `num_bytes`."""
    for index, view in enumerate(views):
        if num_bytes < view.nbytes:
            return [view.cast("B")[num_bytes:], *views[index + 1 :]]
        num_bytes -= view.nbytes
    return []

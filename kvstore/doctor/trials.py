"""What a machine only tells when it is tried. Each trial leaves nothing behind, however it ends."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from moontide.transfer import aligned_buffer
from moontide.transfer.types import PAGE_BYTES

from ..errors import StoreError
from ..service import HostPort, bind_listener
from .cuda import Cuda, find_cuda

PIECE_BYTES = 4 << 20
SPEED_SECONDS = 3.0
"""Of writing, and again of reading: a disk slower than it should be is not measured for longer."""
_IO_URING_SETUP = 425  # the same on every architecture since Linux 5.1
_CLOCK_UNSYNCHRONISED = 5


class DiskSpeed(NamedTuple):
    """Bytes a second, sequentially in pieces of PIECE_BYTES, one at a time; `why_not` says why a
    direct file was not to be had, and the page cache was measured instead."""

    written: float
    read: float
    num_bytes: int
    why_not: str


class Trials(Protocol):
    """Text answers are empty when it works, else the reason."""

    def write_to(self, folder: Path) -> str: ...
    def disk_speed(self, folder: Path, num_bytes: int) -> DiskSpeed: ...
    def seal_memory(self) -> str: ...
    def watch_process(self) -> str: ...
    def set_up_io_uring(self) -> str: ...
    def listen(self, address: HostPort) -> str: ...
    def read_clock(self) -> str: ...
    def find_cuda(self) -> Cuda: ...


class LocalTrials:
    """On this machine."""

    def write_to(self, folder: Path) -> str:
        with _as_reason() as reason, _nameless_file(folder, 0) as file:
            os.write(file, b"x")
        return "".join(reason)

    def disk_speed(self, folder: Path, num_bytes: int) -> DiskSpeed:
        """Raises OSError."""
        buffer = aligned_buffer(PIECE_BYTES)
        buffer[:] = os.urandom(1 << 16) * (PIECE_BYTES >> 16)
        with _measured_file(folder) as (file, why_not):
            start = time.perf_counter()
            size = 0
            while size < num_bytes and time.perf_counter() - start < SPEED_SECONDS:
                size += os.pwrite(file, buffer, size)
            os.fdatasync(file)
            written_seconds = time.perf_counter() - start
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            start = time.perf_counter()
            read = 0
            while read < size and time.perf_counter() - start < SPEED_SECONDS:
                read += os.preadv(file, [buffer], read)
            read_seconds = time.perf_counter() - start
        return DiskSpeed(size / written_seconds, read / read_seconds, size, why_not)

    def seal_memory(self) -> str:
        with _as_reason() as reason:
            file = os.memfd_create("moontide-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            try:
                fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
                os.posix_fallocate(file, 0, PAGE_BYTES)
            except OSError as error:
                if error.errno != errno.EPERM:  # EPERM: sealed, so it may not grow
                    raise
            else:
                reason.append("a sealed segment grew")
            finally:
                os.close(file)
        return "".join(reason)

    def watch_process(self) -> str:
        with _as_reason() as reason:
            os.close(os.pidfd_open(os.getpid()))
        return "".join(reason)

    def set_up_io_uring(self) -> str:
        """Asks for a ring without parameters, which a kernel that has it refuses as EFAULT."""
        libc = ctypes.CDLL(None, use_errno=True)
        libc.syscall(_IO_URING_SETUP, 1, None)
        number = ctypes.get_errno()
        return "" if number == errno.EFAULT else os.strerror(number)

    def listen(self, address: HostPort) -> str:
        try:
            bind_listener(address).close()
        except StoreError as error:
            return str(error)
        return ""

    def read_clock(self) -> str:
        """Whether the kernel thinks that its wall clock follows another one (adjtimex)."""
        libc = ctypes.CDLL(None, use_errno=True)
        nothing_to_set = ctypes.create_string_buffer(512)  # more than any struct timex
        state = libc.adjtimex(nothing_to_set)
        if state < 0:
            return os.strerror(ctypes.get_errno())
        return "not synchronised" if state == _CLOCK_UNSYNCHRONISED else ""

    def find_cuda(self) -> Cuda:
        return find_cuda()


@contextlib.contextmanager
def _as_reason() -> Iterator[list[str]]:
    """A list that gets the text of the OSError the block ended with."""
    reason: list[str] = []
    try:
        yield reason
    except OSError as error:
        reason.append(error.strerror or str(error))


@contextlib.contextmanager
def _measured_file(folder: Path) -> Iterator[tuple[int, str]]:
    """An open file without a name, past the page cache when the file system can (else why not)."""
    try:
        with _nameless_file(folder, os.O_DIRECT) as file:
            os.preadv(file, [aligned_buffer(1)], 0)
            why_not = ""
    except OSError as error:
        why_not = error.strerror or str(error)
    with _nameless_file(folder, 0 if why_not else os.O_DIRECT) as file:
        yield file, why_not


@contextlib.contextmanager
def _nameless_file(folder: Path, flags: int) -> Iterator[int]:
    """Gone with its descriptor, so that not even kill -9 leaves it on the disk."""
    try:
        file = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            raise
        file = _unlinked_file(folder, flags)
    try:
        yield file
    finally:
        os.close(file)


def _unlinked_file(folder: Path, flags: int) -> int:
    """For file systems without O_TMPFILE: named for a moment."""
    named, path = tempfile.mkstemp(prefix=".moontide-doctor-", dir=folder)
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | flags)
    finally:
        os.close(named)
        os.unlink(path)

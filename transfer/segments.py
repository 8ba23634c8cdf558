"""Memory segments: memfds that one process owns and others map.

A segment never shrinks or grows (sealed), leaves nothing behind when its processes end, and is
handed over as a descriptor. Its file mode is 0400, so that nobody but root can turn a read-only
descriptor into a writable one through /proc.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os

from .errors import HandoverRefused, SegmentUnavailable
from .memory import available_address_space, available_memory
from .types import PAGE_BYTES, align_up

STRETCH_BYTES = 1 << 20
"""Prepared at once, so that small writers prepare rarely."""
_MADV_POPULATE_READ, _MADV_POPULATE_WRITE = 22, 23
"""Linux 5.14; Python has no name for them. In a shared mapping the first makes pages writable,
too."""
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def check_memory(num_bytes: int, purpose: str) -> None:
    """Raises SegmentUnavailable naming asked and available when `num_bytes` cannot be had now."""
    room = available_memory()
    if num_bytes > room.available_bytes:
        raise SegmentUnavailable(
            f"{purpose} asks for {num_bytes} bytes; {room.available_bytes} are available "
            f"({room.source}): ask for less or free memory"
        )


class Segment:
    """The owner's side of one memfd of `num_bytes` (whole pages), mapped writable.

    With `reserved` every page is allocated now, so that a later write cannot fail, and huge ones
    are taken where the kernel gives them to shared memory; without, pages come when `reserve` or a
    write first touches them (for sparse tables). Raises SegmentUnavailable."""

    def __init__(self, num_bytes: int, *, name: str, reserved: bool = True) -> None:
        if num_bytes <= 0 or num_bytes % PAGE_BYTES:
            raise ValueError(
                f"segment {name} of {num_bytes} bytes; a segment has a multiple of {PAGE_BYTES}"
            )
        if reserved:
            check_memory(num_bytes, f"segment {name}")
        self.name = name
        self.num_bytes = num_bytes
        self.descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.readable_descriptor = -1
        self._map: mmap.mmap | None = None
        try:
            os.fchmod(self.descriptor, 0o400)
            os.ftruncate(self.descriptor, num_bytes)
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _SEALS)
            self._map = _map(self.descriptor, num_bytes, name=name, writable=True)
            if reserved:
                _populate(self._map)
                self.reserve(0, num_bytes)
            self.readable_descriptor = os.open(
                f"/proc/self/fd/{self.descriptor}", os.O_RDONLY | os.O_CLOEXEC
            )
        except BaseException:
            self.close()
            raise
        self.buffer = memoryview(self._map)

    def reserve(self, offset: int, num_bytes: int) -> None:
        """Allocates the pages of a range. Raises SegmentUnavailable."""
        try:
            os.posix_fallocate(self.descriptor, offset, num_bytes)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
                raise
            raise SegmentUnavailable(
                f"segment {self.name} asks for {num_bytes} bytes; the kernel refused "
                f"({error.strerror}), {available_memory().available_bytes} are available"
            ) from error

    def punch(self, offset: int, num_bytes: int) -> None:
        """Gives the whole pages within a range back to the machine; they read as zeros."""
        start = align_up(offset, PAGE_BYTES)
        stop = (offset + num_bytes) // PAGE_BYTES * PAGE_BYTES
        if stop > start and self._map is not None:
            self._map.madvise(mmap.MADV_REMOVE, start, stop - start)

    def close(self) -> None:
        """Idempotent. Memory stays mapped until the last view of `buffer` is gone."""
        self._close_descriptors()
        self.buffer, self._map = memoryview(b""), None

    def _close_descriptors(self) -> None:
        for descriptor in (self.descriptor, self.readable_descriptor):
            if descriptor >= 0:
                os.close(descriptor)
        self.descriptor = self.readable_descriptor = -1


class Mapping:
    """The other side: a segment received as a descriptor, mapped. Pages come when they are first
    touched, or by `prepare`.

    Takes over the descriptor. Raises HandoverRefused when it is not a sealed segment of
    `num_bytes`, SegmentUnavailable when there is no room to map it."""

    def __init__(self, descriptor: int, num_bytes: int, *, writable: bool = False) -> None:
        try:
            _check_handover(descriptor, num_bytes)
            # The map keeps its own duplicate of the descriptor.
            mapped = _map(descriptor, num_bytes, name="handed over", writable=writable)
        finally:
            os.close(descriptor)
        self.num_bytes = num_bytes
        self.writable = writable
        self.buffer = memoryview(mapped)
        self._map: mmap.mmap | None = mapped
        self._cold = bytearray(b"\1" * -(-num_bytes // STRETCH_BYTES))

    def prepare(self, offset: int, num_bytes: int) -> None:
        """Has the kernel map all pages of a range that is about to be touched: a fifth of what a
        fault for each costs a writer. The range must have been reserved. The first call does no
        more, so that it is quick; the second that finds pages missing does the whole segment, so
        that later ones find none. Thread-safe. Where the kernel is older than 5.14 the faults
        remain."""
        cold, mapped = self._cold, self._map
        stop = -(-(offset + num_bytes) // STRETCH_BYTES)
        start = cold.find(1, offset // STRETCH_BYTES, stop)
        if start < 0 or mapped is None:
            return
        if 0 in cold:
            start, stop = 0, len(cold)
        begin, end = start * STRETCH_BYTES, min(stop * STRETCH_BYTES, self.num_bytes)
        with contextlib.suppress(OSError):
            mapped.madvise(_MADV_POPULATE_READ, begin, end - begin)
        cold[start:stop] = bytes(stop - start)

    def close(self) -> None:
        """Idempotent. Views taken from `buffer` stay valid; the memory is unmapped with the last
        of them."""
        self.buffer, self._map = memoryview(b""), None


def _check_handover(descriptor: int, num_bytes: int) -> None:
    actual = os.fstat(descriptor).st_size
    if actual != num_bytes:
        raise HandoverRefused(f"a segment of {num_bytes} bytes was announced; {actual} arrived")
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError as error:
        raise HandoverRefused("the descriptor handed over is not a memfd") from error
    if not seals & fcntl.F_SEAL_SHRINK:
        raise HandoverRefused("the segment handed over could shrink: it is not sealed")


def _populate(mapped: mmap.mmap) -> None:
    """Touches all pages, huge ones where they are to be had; as far as it goes: what it could not
    get shows when they are reserved."""
    for advice in (mmap.MADV_HUGEPAGE, _MADV_POPULATE_WRITE):
        with contextlib.suppress(OSError):
            mapped.madvise(advice)


def _map(descriptor: int, num_bytes: int, *, name: str, writable: bool) -> mmap.mmap:
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    try:
        return mmap.mmap(descriptor, num_bytes, flags=mmap.MAP_SHARED, prot=protection)
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        room = available_address_space() or available_memory()
        raise SegmentUnavailable(
            f"segment {name} asks for {num_bytes} bytes of address space; "
            f"{room.available_bytes} are available ({room.source})"
        ) from error

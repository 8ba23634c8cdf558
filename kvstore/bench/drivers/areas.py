"""Memory that contestants move bytes from and to."""

from __future__ import annotations

import ctypes
import mmap
import random
import struct

from .contract import Failed

PATTERN_BYTES = 1 << 20
PAGE = 4096
STAMP = struct.Struct("<Q")


class Area:
    """Page-aligned memory that values are put from or got into, touched once; private, as arrays
    and tensors are."""

    def __init__(self, num_bytes: int) -> None:
        self.memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.view = memoryview(self.memory)
        for offset in range(0, num_bytes, mmap.PAGESIZE):
            self.memory[offset] = 0

    @property
    def address(self) -> int:
        return ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def __len__(self) -> int:
        return len(self.view)


class Areas:
    """Source and target memory of one process, made when first needed."""

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes
        self._made: tuple[Area, Area] | None = None

    def of(self, num_bytes: int) -> tuple[Area, Area]:
        """At least so large. Raises Failed."""
        if num_bytes > self._num_bytes:
            raise Failed(f"values of {num_bytes} bytes in an area of {self._num_bytes}")
        if self._made is None:
            self._made = filled(self._num_bytes), Area(self._num_bytes)
        return self._made


def filled(num_bytes: int) -> Area:
    """Bytes that neither compress nor repeat from page to page."""
    area = Area(num_bytes)
    pattern = random.Random(1).randbytes(PATTERN_BYTES)
    for offset in range(0, num_bytes, PATTERN_BYTES):
        end = min(offset + PATTERN_BYTES, num_bytes)
        area.view[offset:end] = pattern[: end - offset]
    for offset in range(0, num_bytes - STAMP.size, PAGE):
        STAMP.pack_into(area.memory, offset, offset)
    return area

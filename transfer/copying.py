"""Copies and checksums of large buffers.

numpy's element loop copies all but small values. From memory it is as fast as memmove, which takes
up to fifteen times as long on some AMD machines where the destination lies 1–63 bytes behind the
source within a 4 KiB page. Large values are summed chunk by chunk, each while still in cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64, xxh3_64_intdigest

from .native import CopyPastCaches, load

Bytes = bytes | bytearray | memoryview

SMALL_BYTES = 16 << 10
"""Below this, one slice assignment, which keeps the GIL."""
CHUNK_BYTES = 1 << 20
"""Copied, and then summed. Copies of so many bytes go past the caches where copying.c was built."""


def do_nothing() -> None: ...


class Copying:
    """Stateless; with `copy_past_caches`, or without."""

    def __init__(self, copy_past_caches: CopyPastCaches | None) -> None:
        self._copy_past_caches = copy_past_caches

    def copy(self, destination: memoryview, source: Bytes) -> None:
        """All of `source` over all of `destination`. Both contiguous, without overlap; sizes must
        be equal (ValueError). Releases the GIL from SMALL_BYTES on."""
        if destination.nbytes < SMALL_BYTES:
            target, origin = flat_pair(destination, source)
            target[:] = origin
            return
        to, came_from = np.frombuffer(destination, np.uint8), np.frombuffer(source, np.uint8)
        if to.size != came_from.size:
            raise _unequal(to.size, came_from.size)
        if self._copy_past_caches is None or to.size < CHUNK_BYTES:
            np.positive(came_from, to)
        elif destination.readonly:
            raise ValueError("the destination is read-only")
        else:
            self._copy_past_caches(_address(to), _address(came_from), to.size)

    def copy_and_checksum(
        self, destination: memoryview, source: Bytes, before_last: Callable[[], None] = do_nothing
    ) -> int:
        """Like `copy`; returns the xxh3-64 of the bytes. Of a source that changes meanwhile it may
        be that of others than were copied. Calls `before_last` when the last CHUNK_BYTES are
        due."""
        if destination.nbytes < CHUNK_BYTES:
            before_last()
            self.copy(destination, source)
            return xxh3_64_intdigest(destination)
        target, origin = flat_pair(destination, source)
        hasher = xxh3_64()
        for start in range(0, len(target), CHUNK_BYTES):
            chunk = slice(start, start + CHUNK_BYTES)
            if chunk.stop >= len(target):
                before_last()
            self.copy(target[chunk], origin[chunk])
            hasher.update(self.left_in_cache(target[chunk], origin[chunk]))
        return hasher.intdigest()

    def left_in_cache(self, target: memoryview, origin: memoryview) -> memoryview:
        """Which of both to read after the one was copied to the other."""
        return target if self._copy_past_caches is None else origin


def checksum(data: Bytes) -> int:
    """xxh3-64. Releases the GIL for large buffers."""
    return xxh3_64_intdigest(data)


def checksums(values: Sequence[Bytes]) -> list[int]:
    """xxh3-64 of each."""
    return list(map(xxh3_64_intdigest, values))


def flat_pair(destination: memoryview, source: Bytes) -> tuple[memoryview, memoryview]:
    """Both as bytes. Raises ValueError unless they have one size."""
    target, origin = _flat(destination), _flat(source)
    if len(target) != len(origin):
        raise _unequal(len(target), len(origin))
    return target, origin


def _unequal(destination: int, source: int) -> ValueError:
    return ValueError(f"copy of {source} bytes into {destination}")


def _flat(data: Bytes) -> memoryview:
    view = memoryview(data)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def _address(array: NDArray[np.uint8]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


_copying = Copying(load())
copy = _copying.copy
copy_and_checksum = _copying.copy_and_checksum
left_in_cache = _copying.left_in_cache

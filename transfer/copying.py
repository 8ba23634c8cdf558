"""Copies and checksums of large buffers.

numpy's element loop copies all but small values. memmove is as fast at best: where the destination
lies 1–63 bytes behind the source within a 4 KiB page it takes up to fifteen times as long on some
AMD machines. Large values are summed chunk by chunk, each while still in cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64, xxh3_64_intdigest

from .native import CopyPastCaches, load

Bytes = bytes | bytearray | memoryview

SMALL_BYTES = 16 << 10
"""Below this, one slice assignment, which keeps the GIL."""
CHUNK_BYTES = 1 << 20
"""Copied, and then summed. Copies of so many bytes go past the caches where copying.c was built."""


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
        else:
            to, came_from = _array_pair(destination, source)
            self._copy(to, came_from)

    def copy_and_checksum(self, destination: memoryview, source: Bytes) -> int:
        """Like `copy`; returns the xxh3-64 of what the destination then holds."""
        if destination.nbytes <= CHUNK_BYTES:
            self.copy(destination, source)
            return xxh3_64_intdigest(destination)
        to, origin = _array_pair(destination, source)
        hasher = xxh3_64()
        for start in range(0, to.size, CHUNK_BYTES):
            chunk = to[start : start + CHUNK_BYTES]
            self._copy(chunk, origin[start : start + CHUNK_BYTES])
            hasher.update(chunk.data)
        return hasher.intdigest()

    def _copy(self, to: NDArray[np.uint8], origin: NDArray[np.uint8]) -> None:
        if self._copy_past_caches is None or to.size < CHUNK_BYTES:
            np.positive(origin, to)
        elif not to.flags.writeable:
            raise ValueError("the destination is read-only")
        else:
            self._copy_past_caches(_address(to), _address(origin), to.size)


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


def _array_pair(
    destination: memoryview, source: Bytes
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """As `flat_pair`, at less cost where arrays are wanted; not of nothing."""
    to, origin = np.frombuffer(destination, np.uint8), np.frombuffer(source, np.uint8)
    if to.size != origin.size:
        raise _unequal(to.size, origin.size)
    return to, origin


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

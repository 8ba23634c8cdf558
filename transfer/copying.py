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
        self._copy(*flat_pair(destination, source))

    def copy_and_checksum(self, destination: memoryview, source: Bytes) -> int:
        """Like `copy`; returns the xxh3-64 of what the destination then holds."""
        target, origin = flat_pair(destination, source)
        if len(target) <= CHUNK_BYTES:
            self._copy(target, origin)
            return xxh3_64_intdigest(target)
        hasher = xxh3_64()
        for start in range(0, len(target), CHUNK_BYTES):
            chunk = target[start : start + CHUNK_BYTES]
            self._copy(chunk, origin[start : start + CHUNK_BYTES])
            hasher.update(chunk)
        return hasher.intdigest()

    def _copy(self, target: memoryview, origin: memoryview) -> None:
        if len(target) < SMALL_BYTES:
            target[:] = origin
            return
        to, source = np.frombuffer(target, np.uint8), np.frombuffer(origin, np.uint8)
        if self._copy_past_caches is None or len(target) < CHUNK_BYTES:
            np.positive(source, to)
        elif target.readonly:
            raise ValueError("the destination is read-only")
        else:
            self._copy_past_caches(_address(to), _address(source), len(target))


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
        raise ValueError(f"copy of {len(origin)} bytes into {len(target)}")
    return target, origin


def _flat(data: Bytes) -> memoryview:
    view = memoryview(data)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def _address(array: NDArray[np.uint8]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


_copying = Copying(load())
copy = _copying.copy
copy_and_checksum = _copying.copy_and_checksum

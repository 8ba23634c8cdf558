"""Copies and checksums of large buffers.

Values of 256 KiB and more go through copying.c where it was built, in one pass. Elsewhere numpy
copies and xxhash sums chunks that are still in cache. Two traps are handled here. A copy whose
destination lies 1–63 bytes off its source within a 4 KiB page runs up to seven times slower through
memmove on some AMD machines; numpy's element loop does not. And slice assignment keeps the GIL,
which is right for small copies and wrong for large ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64, xxh3_64_intdigest

from .native import NativeCopies, load
from .types import CACHE_LINE_BYTES, PAGE_BYTES

Bytes = bytes | bytearray | memoryview

SMALL_BYTES = 16 << 10
"""Below this, one slice assignment: it costs less than looking at addresses."""
UNLOCKED_BYTES = 64 << 10
"""From here on copies release the GIL."""
NATIVE_BYTES = 256 << 10
"""From here on past the caches: smaller values are often used again while in them."""
CHUNK_BYTES = 512 << 10
"""Copied and then summed while still in cache; whole pages, so that each has the phase of all."""


class Copying:
    """Stateless; with `native`, or without."""

    def __init__(self, native: NativeCopies | None) -> None:
        self._native = native

    def copy(self, destination: memoryview, source: Bytes) -> None:
        """Copies `source` over all of `destination`. Both contiguous, without overlap; sizes must
        be equal (ValueError). Releases the GIL from 64 KiB on."""
        self._copy(*_flat_pair(destination, source))

    def copy_and_checksum(self, destination: memoryview, source: Bytes) -> int:
        """Like `copy`; returns the xxh3-64 of what the destination then holds."""
        target, origin = _flat_pair(destination, source)
        if self._native is not None and len(target) >= NATIVE_BYTES:
            return self._native.copy_and_checksum(target, origin)
        if len(target) <= CHUNK_BYTES:
            self._copy(target, origin)
            return xxh3_64_intdigest(target)
        return _copy_and_sum_chunks(target, origin)

    def _copy(self, target: memoryview, origin: memoryview) -> None:
        if len(target) < SMALL_BYTES:
            target[:] = origin
        elif self._native is not None and len(target) >= NATIVE_BYTES:
            self._native.copy(target, origin)
        else:
            _copy_large(target, origin)


_copying = Copying(load())
copy = _copying.copy
copy_and_checksum = _copying.copy_and_checksum


def checksum(data: Bytes) -> int:
    """xxh3-64. Releases the GIL for large buffers."""
    return xxh3_64_intdigest(data)


def checksums(values: Sequence[Bytes]) -> list[int]:
    """xxh3-64 of each."""
    return list(map(xxh3_64_intdigest, values))


def _flat_pair(destination: memoryview, source: Bytes) -> tuple[memoryview, memoryview]:
    """Both as bytes. Raises ValueError unless they have one size."""
    target, origin = _flat(destination), _flat(source)
    if len(target) != len(origin):
        raise ValueError(f"copy of {len(origin)} bytes into {len(target)}")
    if target.readonly:
        raise ValueError(f"copy of {len(origin)} bytes into a read-only buffer")
    return target, origin


def _flat(data: Bytes) -> memoryview:
    view = memoryview(data)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def _copy_and_sum_chunks(target: memoryview, origin: memoryview) -> int:
    hasher = xxh3_64()
    to, source = np.frombuffer(target, np.uint8), np.frombuffer(origin, np.uint8)
    move = _move_shifted if _is_shifted(to, source) else np.copyto
    for start in range(0, len(target), CHUNK_BYTES):
        piece = to[start : start + CHUNK_BYTES]
        move(piece, source[start : start + CHUNK_BYTES])
        hasher.update(piece.data)
    return hasher.intdigest()


def _copy_large(target: memoryview, origin: memoryview) -> None:
    to, source = np.frombuffer(target, np.uint8), np.frombuffer(origin, np.uint8)
    if _is_shifted(to, source):
        _move_shifted(to, source)
    elif len(target) < UNLOCKED_BYTES:
        target[:] = origin
    else:
        np.copyto(to, source)


def _is_shifted(to: NDArray[np.uint8], source: NDArray[np.uint8]) -> bool:
    return 0 < (_address(to) - _address(source)) % PAGE_BYTES < CACHE_LINE_BYTES


def _move_shifted(to: NDArray[np.uint8], source: NDArray[np.uint8]) -> None:
    np.positive(source, out=to)


def _address(array: NDArray[np.uint8]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address

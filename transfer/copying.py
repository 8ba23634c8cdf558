"""Copies and checksums of large buffers.

copying.c does both in one pass where it was built. Elsewhere numpy copies and xxhash sums chunks
that are still in cache, and two traps are handled. A copy whose destination lies 1–63 bytes off its
source within a 4 KiB page runs up to seven times slower through memmove on some AMD machines;
numpy's element loop does not. And slice assignment keeps the GIL, which is right for small copies
and wrong for large ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64, xxh3_64_intdigest

from .native import LEAST_SUMMED_BYTES, NativeCopies, load
from .types import CACHE_LINE_BYTES, PAGE_BYTES

Bytes = bytes | bytearray | memoryview

SMALL_BYTES = 16 << 10
"""Below this, one slice assignment: it costs less than looking at addresses."""
UNLOCKED_BYTES = 64 << 10
"""From here on copies release the GIL."""
CHUNK_BYTES = 512 << 10
"""Copied and then summed while still in cache; whole pages, so that each has the phase of all."""


class Copying:
    """Stateless; with `native`, or without."""

    def __init__(self, native: NativeCopies | None) -> None:
        self.copy: Callable[[memoryview, Bytes], None] = native.copy if native else _copy
        """Copies the second over all of the first. Both contiguous, without overlap; sizes must be
        equal (ValueError). Releases the GIL from 64 KiB on."""
        self._copy_and_sum: Callable[[memoryview, Bytes], int] = (
            native.copy_and_checksum if native else _copy_and_sum
        )

    def copy_and_checksum(self, destination: memoryview, source: Bytes) -> int:
        """Like `copy`; returns the xxh3-64 of what the destination then holds."""
        if len(source) < LEAST_SUMMED_BYTES:
            return _copy_and_sum(destination, source)
        return self._copy_and_sum(destination, source)


def checksum(data: Bytes) -> int:
    """xxh3-64. Releases the GIL for large buffers."""
    return xxh3_64_intdigest(data)


def checksums(values: Sequence[Bytes]) -> list[int]:
    """xxh3-64 of each."""
    return list(map(xxh3_64_intdigest, values))


def _copy(destination: memoryview, source: Bytes) -> None:
    target, origin = _flat_pair(destination, source)
    if len(target) < SMALL_BYTES:
        target[:] = origin
    else:
        _copy_large(target, origin)


def _copy_and_sum(destination: memoryview, source: Bytes) -> int:
    target, origin = _flat_pair(destination, source)
    if len(target) > CHUNK_BYTES:
        return _copy_and_sum_chunks(target, origin)
    if len(target) < SMALL_BYTES:
        target[:] = origin
    else:
        _copy_large(target, origin)
    return xxh3_64_intdigest(target)


def _flat_pair(destination: memoryview, source: Bytes) -> tuple[memoryview, memoryview]:
    """Both as bytes. Raises ValueError unless they have one size."""
    target, origin = _flat(destination), _flat(source)
    if len(target) != len(origin):
        raise ValueError(f"copy of {len(origin)} bytes into {len(target)}")
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


_copying = Copying(load())
copy = _copying.copy
copy_and_checksum = _copying.copy_and_checksum

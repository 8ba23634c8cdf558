"""Copies and checksums of large buffers.

Two traps are handled here. A copy whose destination lies 1–63 bytes off its source within a 4 KiB
page runs up to seven times slower through memmove on some AMD machines; numpy's element loop does
not. And slice assignment keeps the GIL, which is right for small copies and wrong for large ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64, xxh3_64_intdigest

from .types import CACHE_LINE_BYTES, PAGE_BYTES

Bytes = bytes | bytearray | memoryview

SMALL_BYTES = 16 << 10
"""Below this, one slice assignment: it costs less than looking at addresses."""
UNLOCKED_BYTES = 64 << 10
"""From here on copies release the GIL."""
CHUNK_BYTES = 512 << 10
"""Copied and then summed while still in cache; whole pages, so that each has the phase of all."""


def copy(destination: memoryview, source: Bytes) -> None:
    """Copies `source` over all of `destination`. Both contiguous; sizes must be equal (ValueError).
    Releases the GIL from 64 KiB on."""
    target, origin = flat_pair(destination, source)
    if len(target) < SMALL_BYTES:
        target[:] = origin
    else:
        _copy_large(target, origin)


def copy_and_checksum(destination: memoryview, source: Bytes) -> int:
    """Like `copy`; returns the xxh3-64 of what the destination then holds."""
    target, origin = flat_pair(destination, source)
    if len(target) <= CHUNK_BYTES:
        copy(target, origin)
        return xxh3_64_intdigest(target)
    hasher = xxh3_64()
    to, source_array = np.frombuffer(target, np.uint8), np.frombuffer(origin, np.uint8)
    move = _move_shifted if _is_shifted(to, source_array) else np.copyto
    for start in range(0, len(target), CHUNK_BYTES):
        piece = to[start : start + CHUNK_BYTES]
        move(piece, source_array[start : start + CHUNK_BYTES])
        hasher.update(piece.data)
    return hasher.intdigest()


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

"""Where the values that are read go."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol, TypeVar

import numpy as np

from moontide.transfer import CopyHelper, checksum, checksums, copy_and_checksum

from ..errors import InvalidRequest

T_co = TypeVar("T_co", covariant=True)

SMALL_VALUE_BYTES = 16 << 10
"""Below this a slice assignment is the best copy, and its Python costs as much as its bytes."""


class Target(Protocol[T_co]):
    """Takes the value of entry `index` of those asked for."""

    def copied(self, index: int, source: memoryview) -> T_co:
        """Takes the bytes; the result."""

    def summed(self, index: int, source: memoryview) -> tuple[T_co, int]:
        """As `copied`, with the xxh3-64 of the copy."""

    def all_summed(
        self, indices: Sequence[int], sources: Sequence[memoryview]
    ) -> tuple[Sequence[T_co], list[int]]:
        """As `summed` for each, at least one, of values that one thread copies best."""

    def room(self, index: int, size: int) -> memoryview:
        """Where so many bytes of the value may be received; then `received` takes them."""

    def received(self, index: int, source: memoryview) -> T_co:
        """The result; `source` is the `room` that it was given, filled."""

    def most_bytes(self, indices: Sequence[int]) -> float:
        """How many bytes it takes of them at most."""


class AsBytes:
    """A target that gives values as bytes."""

    def copied(self, index: int, source: memoryview) -> bytes:
        return bytes(source)

    def summed(self, index: int, source: memoryview) -> tuple[bytes, int]:
        value = bytes(source)
        return value, checksum(value)

    def all_summed(
        self, indices: Sequence[int], sources: Sequence[memoryview]
    ) -> tuple[list[bytes], list[int]]:
        values = list(map(bytes, sources))
        return values, checksums(values)

    def room(self, index: int, size: int) -> memoryview:
        return np.empty(size, np.uint8).data

    def received(self, index: int, source: memoryview) -> bytes:
        return bytes(source)

    def most_bytes(self, indices: Sequence[int]) -> float:
        return math.inf


class IntoBuffers:
    """A target that fills `buffers`, one an entry, and gives sizes. Raises InvalidRequest when one
    is too small."""

    def __init__(self, buffers: Sequence[memoryview], helper: CopyHelper) -> None:
        self._buffers = buffers
        self._helper = helper

    def copied(self, index: int, source: memoryview) -> int:
        self._helper.copy(self._front(index, len(source)), source)
        return len(source)

    def summed(self, index: int, source: memoryview) -> tuple[int, int]:
        front = self._front(index, len(source))
        if len(source) < SMALL_VALUE_BYTES:
            front[:] = source
            return len(source), checksum(front)
        return len(source), self._helper.copy_and_checksum(front, source)

    def all_summed(
        self, indices: Sequence[int], sources: Sequence[memoryview]
    ) -> tuple[list[int], list[int]]:
        buffers = self._buffers
        sizes = list(map(len, sources))
        fronts = [buffers[index][:size] for index, size in zip(indices, sizes, strict=True)]
        if list(map(len, fronts)) != sizes:
            fronts = list(map(self._front, indices, sizes))
        if max(sizes) >= SMALL_VALUE_BYTES:
            return sizes, list(map(copy_and_checksum, fronts, sources))
        for front, source in zip(fronts, sources, strict=True):
            front[:] = source
        return sizes, checksums(fronts)

    def room(self, index: int, size: int) -> memoryview:
        return self._front(index, size)

    def received(self, index: int, source: memoryview) -> int:
        return len(source)

    def most_bytes(self, indices: Sequence[int]) -> float:
        return sum([len(self._buffers[index]) for index in indices])

    def _front(self, index: int, size: int) -> memoryview:
        buffer = self._buffers[index]
        if len(buffer) < size:
            raise InvalidRequest(
                f"buffer of {len(buffer)} bytes is too small for an entry of {size}; "
                "ask size(key) first"
            )
        return buffer[:size]


AS_BYTES = AsBytes()

"""Where the values that are read go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

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


class IntoBuffers:
    """A target that fills `buffers`, one an entry, and gives sizes. Raises InvalidRequest when one
    is too small."""

    def __init__(self, buffers: Sequence[memoryview], helper: CopyHelper) -> None:
        self._buffers = buffers
        self._helper = helper

    def copied(self, index: int, source: memoryview) -> int:
        self._helper.copy(self._front(index, source), source)
        return len(source)

    def summed(self, index: int, source: memoryview) -> tuple[int, int]:
        front = self._front(index, source)
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
            fronts = list(map(self._front, indices, sources))
        if max(sizes) >= SMALL_VALUE_BYTES:
            return sizes, list(map(copy_and_checksum, fronts, sources))
        for front, source in zip(fronts, sources, strict=True):
            front[:] = source
        return sizes, checksums(fronts)

    def _front(self, index: int, source: memoryview) -> memoryview:
        buffer = self._buffers[index]
        if len(buffer) < len(source):
            raise InvalidRequest(
                f"buffer of {len(buffer)} bytes is too small for an entry of {len(source)}; "
                "ask size(key) first"
            )
        return buffer[: len(source)]


AS_BYTES = AsBytes()

"""How values get into the store: with a checksum from producer to readers, or without."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from moontide.transfer import Bytes, CopyHelper, checksums, do_nothing

from ..errors import InvalidRequest

Checksums = Literal["on", "off"]
LEAST_ANNOUNCED_BYTES = 128 << 10
"""To copy less takes no longer than to wake the daemon."""
LAST_BYTES = 1 << 20
"""Of a batch: while they are copied, the daemon wakes up."""


class Copies(Protocol):
    """Copies values into the store. A checksum of 0 says that there is none."""

    def sums(self, values: Sequence[Bytes]) -> list[int]: ...
    def copy(
        self, destination: memoryview, source: Bytes, before_last: Callable[[], None] = do_nothing
    ) -> int:
        """The checksum. `before_last` is called when the last megabyte is due."""


@dataclass(frozen=True, slots=True)
class SummedCopies:
    helper: CopyHelper

    def sums(self, values: Sequence[Bytes]) -> list[int]:
        return checksums(values)

    def copy(
        self, destination: memoryview, source: Bytes, before_last: Callable[[], None] = do_nothing
    ) -> int:
        return self.helper.copy_and_checksum(destination, source, before_last)


@dataclass(frozen=True, slots=True)
class PlainCopies:
    helper: CopyHelper

    def sums(self, values: Sequence[Bytes]) -> list[int]:
        return [0] * len(values)

    def copy(
        self, destination: memoryview, source: Bytes, before_last: Callable[[], None] = do_nothing
    ) -> int:
        self.helper.copy(destination, source, before_last)
        return 0


def index_of_last(sizes: Sequence[int]) -> int:
    """The value with which the last LAST_BYTES begin; the last one if it is that large."""
    left = 0
    for index in range(len(sizes) - 1, 0, -1):
        left += sizes[index]
        if left >= LAST_BYTES:
            return index
    return 0


def copies_with(checksums: Checksums, helper: CopyHelper) -> Copies:
    """Raises InvalidRequest on another word."""
    if checksums not in get_args(Checksums):
        raise InvalidRequest(
            f"checksums is {checksums!r}; give one of {', '.join(get_args(Checksums))}"
        )
    return SummedCopies(helper) if checksums == "on" else PlainCopies(helper)

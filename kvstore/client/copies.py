"""How values get into the store: with a checksum from producer to readers, or without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from moontide.transfer import Bytes, CopyHelper, checksums

from ..errors import InvalidRequest

Checksums = Literal["on", "off"]


class Copies(Protocol):
    """Copies values into the store. A checksum of 0 says that there is none."""

    def sums(self, values: Sequence[Bytes]) -> list[int]: ...
    def copy(self, destination: memoryview, source: Bytes) -> int: ...


@dataclass(frozen=True, slots=True)
class SummedCopies:
    helper: CopyHelper

    def sums(self, values: Sequence[Bytes]) -> list[int]:
        return checksums(values)

    def copy(self, destination: memoryview, source: Bytes) -> int:
        return self.helper.copy_and_checksum(destination, source)


@dataclass(frozen=True, slots=True)
class PlainCopies:
    helper: CopyHelper

    def sums(self, values: Sequence[Bytes]) -> list[int]:
        return [0] * len(values)

    def copy(self, destination: memoryview, source: Bytes) -> int:
        self.helper.copy(destination, source)
        return 0


def copies_with(checksums: Checksums, helper: CopyHelper) -> Copies:
    """Raises InvalidRequest on another word."""
    if checksums not in get_args(Checksums):
        raise InvalidRequest(
            f"checksums is {checksums!r}; give one of {', '.join(get_args(Checksums))}"
        )
    return SummedCopies(helper) if checksums == "on" else PlainCopies(helper)

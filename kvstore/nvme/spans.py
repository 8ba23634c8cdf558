"""Which extents are read together: neighbours in a region, in one system call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from moontide.transfer import is_aligned
from moontide.transfer.types import PAGE_BYTES

from .records import EntryRecord, StoredExtent
from .types import ExtentRead

SPAN_BYTES = 4 << 20
"""Neighbouring extents are read together up to this size, and threads share work in such pieces."""


class Read(NamedTuple):
    """`is_straight`: from the file into its destination, without a copy."""

    position: int  # in the caller's list
    location: EntryRecord
    extent: StoredExtent
    destination: memoryview
    is_straight: bool

    @classmethod
    def of(cls, position: int, request: ExtentRead) -> Read:
        extent = request.location.extents[request.extent]
        destination = memoryview(request.destination).cast("B")
        is_straight = (
            extent.stored_length == extent.length
            and extent.offset % PAGE_BYTES == 0
            and is_aligned(destination)
        )
        return cls(position, request.location, extent, destination, is_straight)


def spans_of(requests: Sequence[ExtentRead]) -> list[list[Read]]:
    """Reads in spans of neighbours, at most SPAN_BYTES or one extent a span."""
    reads = [Read.of(position, request) for position, request in enumerate(requests)]
    reads.sort(key=lambda read: (read.location.region, read.extent.offset))
    spans: list[list[Read]] = []
    room = 0
    for read in reads:
        num_bytes = read.extent.stored_length
        if spans and num_bytes <= room and _follows(read, spans[-1][-1]):
            spans[-1].append(read)
        else:
            spans.append([read])
            room = SPAN_BYTES
        room -= num_bytes
    return spans


def _follows(read: Read, last: Read) -> bool:
    """Straight ones leave no gap; of the others, what lies between is read and thrown away."""
    gap = read.extent.offset - (last.extent.offset + last.extent.stored_length)
    return (
        read.location.region == last.location.region
        and read.is_straight == last.is_straight
        and 0 <= gap < (1 if read.is_straight else PAGE_BYTES)
    )

"""One span of extents: read, decoded, verified."""

from __future__ import annotations

from collections.abc import Sequence

from moontide.transfer import aligned_buffer, checksum, copy
from moontide.transfer.types import PAGE_BYTES, align_up

from ..errors import Corrupt
from .codec import Codec
from .region import Region
from .spans import SPAN_BYTES, Read


class ReadDesk:
    """One thread's buffer and decompressor."""

    def __init__(self) -> None:
        self._codec = Codec()
        self._buffer = aligned_buffer(SPAN_BYTES + PAGE_BYTES)

    def bring_in(self, region: Region, reads: Sequence[Read]) -> list[Read]:
        """Reads neighbours; returns those that match their checksum. Raises one of DISK_ERRORS."""
        first, last = reads[0].extent, reads[-1].extent
        if all(read.is_straight for read in reads):
            region.file.read_into([read.destination for read in reads], first.offset)
        else:
            start = first.offset // PAGE_BYTES * PAGE_BYTES
            end = align_up(last.offset + last.stored_length, PAGE_BYTES)
            data = self._room_for(end - start)
            region.file.read_into([data], start)
            reads = [
                read for read in reads if self._decode(read, data[read.extent.offset - start :])
            ]
        return [read for read in reads if checksum(read.destination) == read.extent.checksum]

    def _decode(self, read: Read, data: memoryview) -> bool:
        stored = data[: read.extent.stored_length]
        if len(stored) == read.extent.length:
            copy(read.destination, stored)
            return True
        try:
            self._codec.decompress(stored, read.destination, read.location.element_bytes)
        except Corrupt:
            return False
        return True

    def _room_for(self, num_bytes: int) -> memoryview:
        """A larger buffer than usual lives for one read."""
        if num_bytes > len(self._buffer):
            return aligned_buffer(num_bytes)
        return self._buffer[:num_bytes]

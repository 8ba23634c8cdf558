"""Copying layers of blocks into the caller's buffers, each extent verified, on the copy thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from moontide.transfer import checksum, copy, copy_and_checksum

from ..connections.attachment import Attachment
from .located import LocatedBlocks, Piece, StoredEntry, StoredExtent


class Part(NamedTuple):
    """One layer of one block, and the buffer it goes to."""

    block: int
    pieces: list[Piece]
    destination: memoryview


Sent = dict[StoredExtent, memoryview]
"""Extents that came over the socket."""


class CopyRun:
    """Copies parts whose layers are complete. Exactly the blocks in `failed` must not be used."""

    def __init__(
        self,
        attachment: Attachment,
        located: LocatedBlocks,
        parts: Sequence[Part],
        sent: Sent | None,
    ) -> None:
        """`sent` None: from shared memory."""
        self.stopped = False  # set by any thread: end before the next part
        self.parts = parts
        self.failed: set[int] = set()
        self.corrupt: set[StoredEntry] = set()
        self.read_bytes = 0
        self._attachment = attachment
        self._located = located
        self._sent = sent

    def run(self) -> None:
        for part in self.parts:
            if self.stopped:
                return
            if all(self._copy(piece, part.destination) for piece in part.pieces):
                self.read_bytes += len(part.destination)
            else:
                self.failed.add(part.block)

    def _copy(self, piece: Piece, destination: memoryview) -> bool:
        source = self._source(piece.extent)
        if source is None:
            return False
        target = destination[piece.target_offset : piece.target_offset + piece.num_bytes]
        if piece.num_bytes == len(source):
            actual = copy_and_checksum(target, source)
        else:  # the checksum is the whole extent's: verify a private copy, then take the run
            private = memoryview(bytes(source))
            actual = checksum(private)
            copy(target, private[piece.source_offset : piece.source_offset + piece.num_bytes])
        if not self._is_intact(piece.extent):
            return False
        if actual != self._located.checksum(piece.extent):
            self.corrupt.add(piece.extent.entry)
            return False
        return True

    def _source(self, extent: StoredExtent) -> memoryview | None:
        entry = extent.entry
        if self._sent is not None:
            source = self._sent.get(extent)
        else:
            segment = self._attachment.readable(entry.segment)
            end = extent.offset + entry.layer_bytes
            source = None if segment is None else segment[extent.offset : end]
        return None if source is None or len(source) != entry.layer_bytes else source

    def _is_intact(self, extent: StoredExtent) -> bool:
        slots = self._attachment.slots
        if slots is None:
            return True  # the daemon checked when it read
        place = extent.entry.slot, extent.entry.generation
        if slots.is_intact(*place):
            return self._located.is_pinned or slots.is_current(*place)
        watermark = slots.watermark(*place)  # still being written
        return watermark is not None and watermark > extent.layer

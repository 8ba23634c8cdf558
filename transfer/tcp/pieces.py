"""Pieces of slices: what one frame asks for."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..batches import Batch, Batches
from ..types import Opcode, SliceStatus
from ..wire import Header, Kind

PIECE_BYTES = 1 << 20
"""Larger slices are split, so that several streams share them."""
MOST_PIECE_BYTES = 4 << 20


@dataclass(slots=True, eq=False)
class Piece:
    """`view` is touched by the stream that took the piece, by nobody else."""

    batch: Batch
    index: int  # of the slice
    opcode: Opcode
    view: memoryview
    segment: int
    offset: int
    attempts: int = 0  # connections it was sent on

    def header(self, request_id: int) -> Header:
        kind = Kind.READ if self.opcode is Opcode.READ else Kind.WRITE
        return Header(kind, self.segment, request_id, self.offset, self.view.nbytes)

    @property
    def may_retry(self) -> bool:
        """A READ may run twice; a WRITE that may have arrived may not."""
        return self.attempts == 0 or (self.opcode is Opcode.READ and self.attempts == 1)


def pieces_of(batches: Batches, batch: Batch, index: int, piece_bytes: int) -> Sequence[Piece]:
    """Splits one slice; `batches` expects as many settlements."""
    request = batch.requests[index]
    local, segment, offset = request.local, request.remote.segment, request.offset
    if local.nbytes <= piece_bytes:
        return (Piece(batch, index, request.opcode, local, segment, offset),)
    starts = range(0, local.nbytes, piece_bytes)
    batches.split(batch, index, len(starts))
    return [
        Piece(
            batch,
            index,
            request.opcode,
            local[start : start + piece_bytes],
            segment,
            offset + start,
        )
        for start in starts
    ]


def settle(batches: Batches, pieces: Iterable[Piece], status: SliceStatus) -> None:
    """The pieces' memory is let go; what ended a batch comes before what befell a piece."""
    for batch, own in itertools.groupby(pieces, key=_batch):
        indices = [piece.index for piece in own]
        batches.settle_all(batch, indices, [batch.ending or status] * len(indices))


def _batch(piece: Piece) -> Batch:
    return piece.batch

"""What of a fill is read when: the decisions, without any I/O.

A piece is one entry that fills here. Each of its layers goes through

    unknown ──the source has it──► available ──next_chunk──► in flight ──settle──► settled | failed

in order. Chunks are layer-major: what a reader waits for first comes first, the first layer alone.
A piece that failed is given no more reads, and is over once none of its reads is in flight. What
has arrived, with which checksum, is the manifest's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from moontide.transfer import Manifest, Notice

from ...layout import Shard
from ...store import LayerRun
from .offers import RemoteEntry


@dataclass(slots=True, eq=False)
class Piece:
    """One reservation of ours and what fills it. `memory` is the entry's bytes here."""

    key: bytes  # of a block, or id of a string entry
    shard: Shard
    slot: int
    generation: int
    memory: memoryview
    num_extents: int
    stride: int  # bytes between layers
    extent_bytes: int
    remote: RemoteEntry | None = None
    index: int = 0  # within its plan
    submitted: int = 0
    in_flight: int = 0
    failed: bool = False
    was_held: bool = False
    dropped: bool = False  # nobody holds it any more

    @property
    def available(self) -> int:
        """Leading layers that the source has."""
        return self.remote.extents if self.remote is not None else 0

    @property
    def is_active(self) -> bool:
        return not self.failed and self.submitted < self.num_extents

    @property
    def is_unfinished(self) -> bool:
        """It may still become whole."""
        return not self.failed and (self.is_active or self.in_flight > 0)

    @property
    def depth(self) -> int:
        """The layer to read next, counted from the model's first."""
        return self.shard.layers[0] + self.submitted


class Read(NamedTuple):
    """Layers of one piece that lie one after the other, from where the source had them."""

    piece: Piece
    extents: range
    remote: RemoteEntry

    @property
    def local(self) -> memoryview:
        start = self.extents.start * self.piece.stride
        return self.piece.memory[start : start + self.num_bytes]

    def layer(self, extent: int) -> slice:
        """Where it lies in the piece's memory."""
        start = extent * self.piece.stride
        return slice(start, start + self.piece.extent_bytes)

    @property
    def num_bytes(self) -> int:
        return (len(self.extents) - 1) * self.piece.stride + self.piece.extent_bytes

    @property
    def offset(self) -> int:
        """In the source's segment."""
        return self.remote.offset + self.extents.start * self.piece.stride


Sums = Sequence[list[int] | None]
"""Of each layer of each read that came."""


class Settled(NamedTuple):
    """What to tell the store after a chunk: layers that are complete; pieces that are whole; pieces
    to abort, which nothing touches any more. And reads that brought other bytes than the peer
    said."""

    advanced: list[LayerRun]
    whole: list[Piece]
    ended: list[Piece]
    damaged: list[Read]


class FillPlan:
    """Of at least one piece."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces = pieces
        for index, piece in enumerate(pieces):
            piece.index = index
        self._manifest = Manifest([piece.num_extents for piece in pieces])
        self._given_up: list[Piece] = []

    @property
    def is_over(self) -> bool:
        """Nothing is left to read and nothing is in flight."""
        return not any(piece.is_active or piece.in_flight for piece in self.pieces)

    def waiting(self) -> list[Piece]:
        """Pieces of which the source lacks the next layer, first block first."""
        return [
            piece for piece in self.pieces if piece.is_active and piece.submitted >= piece.available
        ]

    def next_chunk(self, max_bytes: int) -> list[Read]:
        """The next reads, up to `max_bytes` or one layer of a piece: of one layer, or after the
        first of as many as fit. Empty when the source has no more yet."""
        ready = [
            piece for piece in self.pieces if piece.is_active and piece.submitted < piece.available
        ]
        if not ready:
            return []
        depths = {piece.depth for piece in ready}
        depth = min(depths)
        level = [piece for piece in ready if piece.depth == depth]
        count = 1
        if all(piece.submitted for piece in level):
            count = max(1, max_bytes // sum(piece.extent_bytes for piece in level))
        if len(depths) > 1:  # those behind catch up
            count = min(count, min(depths - {depth}) - depth)
        chunk: list[Read] = []
        for piece in level:
            max_bytes -= count * piece.extent_bytes
            if chunk and max_bytes < 0:
                break
            assert piece.remote is not None
            stop = min(piece.submitted + count, piece.available)
            chunk.append(Read(piece, range(piece.submitted, stop), piece.remote))
        for read in chunk:
            read.piece.submitted = read.extents.stop
            read.piece.in_flight += 1
        return chunk

    def settle(self, chunk: Sequence[Read], sums: Sums) -> Settled:
        """In the order of `next_chunk`. `sums`: the checksums of the layers that came, None where
        none did."""
        settled = Settled([], [], [], [])
        for read, found in zip(chunk, sums, strict=True):
            piece = read.piece
            piece.in_flight -= 1
            if found is None:
                self._manifest.failed(piece.index, read.extents[0])
                piece.failed = True
            elif not self._arrived(read, found):
                piece.failed = True
                settled.damaged.append(read)
            if found is not None and not piece.failed:
                run = LayerRun(piece.slot, piece.generation, read.extents.start, found)
                settled.advanced.append(run)
                if self._manifest.watermark(piece.index) == piece.num_extents:
                    settled.whole.append(piece)
            elif not piece.in_flight:
                settled.ended.append(piece)
        return settled

    def _arrived(self, read: Read, found: list[int]) -> bool:
        """Whether all of it is what the producer summed. What it did not sum is what came, from
        here on."""
        first, stop = read.extents.start, read.extents.stop
        announced = list(read.remote.checksums[first:stop])
        if 0 in announced:
            announced = [known or came for known, came in zip(announced, found, strict=True)]
        notice = self._manifest.arrived(read.piece.index, first, announced, found)
        return notice is Notice.NEW

    def give_up(self, pieces: Sequence[Piece]) -> None:
        """These get no more reads. Those that nothing touches end with `take_given_up`, the others
        when their chunks settle."""
        for piece in pieces:
            if not piece.failed and self._manifest.watermark(piece.index) < piece.num_extents:
                piece.failed = True
                if not piece.in_flight:
                    self._given_up.append(piece)

    def drop_released(self, is_held: Callable[[int, int], bool]) -> None:
        """Gives up pieces that somebody held (by slot and generation) and nobody does any more: who
        wanted them has dropped them. What nobody ever held comes for whoever asks next."""
        for piece in self.pieces:
            if not piece.is_unfinished:
                continue
            if is_held(piece.slot, piece.generation):
                piece.was_held = True
            elif piece.was_held:
                piece.dropped = True
                self.give_up([piece])

    def take_given_up(self) -> list[Piece]:
        """Pieces to abort now, once each."""
        given_up, self._given_up = self._given_up, []
        return given_up

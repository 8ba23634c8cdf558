"""What a reservation of blocks got: for each block a status, and for each of its shards a place."""

from __future__ import annotations

from ... import wire
from ...types import ReserveStatus
from ..spaces import Space, granted_segments


class BlockSpaces:
    """A block is RESERVED when each of its shards is there or has space, and at least one has.
    `spare` is what blocks got that lack space for another shard: to be given back."""

    def __init__(self, reserved: wire.Reserved, num_shards: int) -> None:
        self._blocks: list[list[Space | None]] = []
        self.spare: list[Space] = []
        statuses: list[ReserveStatus] = []
        for start in range(0, len(reserved.results), num_shards):
            results = reserved.results[start : start + num_shards]
            spaces = [Space.of(result) for result in results]
            got = [space for space in spaces if space is not None]
            status = max(ReserveStatus(result[0]) for result in results)
            if status is ReserveStatus.EXISTS and got:
                status = ReserveStatus.RESERVED
            if status is not ReserveStatus.RESERVED:
                spaces = [None for _ in spaces]
                self.spare += got
            statuses.append(status)
            self._blocks.append(spaces)
        self.statuses = tuple(statuses)

    def of_shard(self, shard: int) -> list[tuple[int, Space]]:
        """(block, space) of each block to be written."""
        spaces = [(index, block[shard]) for index, block in enumerate(self._blocks)]
        return [(index, space) for index, space in spaces if space is not None]

    def all(self) -> list[tuple[int, Space]]:
        """(block, space) of everything to be written, block after block."""
        return [
            (index, space)
            for index, block in enumerate(self._blocks)
            for space in block
            if space is not None
        ]

    def segments(self) -> dict[int, list[tuple[int, int]]]:
        """As `granted_segments`, of everything to be written."""
        return granted_segments(space for _, space in self.all())

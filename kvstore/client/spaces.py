"""Space that a reservation got, and how its entries are ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .. import wire
from ..types import ReserveStatus


class Space(NamedTuple):
    """Reserved for one entry: a value, or one shard of one block."""

    slot: int
    generation: int
    segment: int
    offset: int
    writable: bool  # through the granted segment; otherwise the bytes are sent

    @classmethod
    def of(cls, result: tuple[int, int, int, int, int, bool]) -> Space | None:
        """None unless the entry was RESERVED."""
        return cls(*result[1:]) if result[0] == ReserveStatus.RESERVED else None


def granted_segments(spaces: Iterable[Space]) -> dict[int, list[tuple[int, int]]]:
    """Granted segments that `spaces` lie in, and the reservations (slot, generation) in each."""
    segments: dict[int, list[tuple[int, int]]] = {}
    for space in spaces:
        if space.writable:
            segments.setdefault(space.segment, []).append((space.slot, space.generation))
    return segments


def commit_message(spaces: Sequence[Space], checksums: Sequence[int] = ()) -> wire.Commit:
    """`checksums` of values; none when every extent was advanced."""
    slots, generations = _places(spaces)
    return wire.Commit(slots, generations, list(checksums))


def abort_message(spaces: Sequence[Space]) -> wire.Abort:
    return wire.Abort(*_places(spaces))


def _places(spaces: Sequence[Space]) -> tuple[list[int], list[int]]:
    return [space.slot for space in spaces], [space.generation for space in spaces]

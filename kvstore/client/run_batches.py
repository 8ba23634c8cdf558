"""How the values of one call lie in runs: batch by batch, one behind another."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain

from moontide.transfer import Bytes
from moontide.transfer.types import CACHE_LINE_BYTES, PAGE_BYTES, align_up

from ..keys import EntryId
from ..wire import MAX_KEYS
from .batches import batches

_LINE_MASK = CACHE_LINE_BYTES - 1
_PADDING = [bytes(-count & _LINE_MASK) for count in range(CACHE_LINE_BYTES)]
"""By the size of a value, modulo cache lines."""
_EMPTY_LINE = bytes(CACHE_LINE_BYTES)
"""An empty value has a place too."""


class Batch:
    """What one CommitRun makes visible. Small values alone are packed: they lie one behind another,
    are joined and copied at once. `offsets` are from where the batch begins."""

    __slots__ = ("entries", "is_packed", "num_bytes", "offsets", "sizes", "values")

    def __init__(
        self, entries: Sequence[EntryId], values: Sequence[Bytes], sizes: Sequence[int]
    ) -> None:
        self.entries = entries
        self.values = values
        self.sizes = sizes
        self.is_packed = max(sizes) < PAGE_BYTES
        self.offsets, self.num_bytes = _laid_out(sizes)

    def __len__(self) -> int:
        return len(self.entries)

    def begin(self, front: int) -> int:
        """The first place for it from `front` on."""
        return front if self.is_packed else align_up(front, PAGE_BYTES)

    def offsets_from(self, begin: int) -> Sequence[int]:
        offsets = self.offsets
        if isinstance(offsets, range):
            return range(begin + offsets.start, begin + offsets.stop, offsets.step)
        return [begin + offset for offset in offsets]

    def joined(self) -> bytes:
        """Of a packed one: what lies from its first value to its last."""
        values, sizes = self.values, self.sizes
        if isinstance(self.offsets, range):
            return _padding(sizes[0]).join(values)
        return b"".join(chain.from_iterable(zip(values, map(_padding, sizes), strict=True)))


def batches_for_runs(
    entries: Sequence[EntryId],
    values: Sequence[Bytes],
    *,
    most_bytes: int,
    most_entries: int = MAX_KEYS,
) -> list[Batch]:
    """In order, of about as many entries each. A value of more than `most_bytes` is one alone."""
    sizes = list(map(len, values))
    if len(sizes) == 1:
        return [Batch(entries, values, sizes)]
    if sum(sizes) + len(sizes) * PAGE_BYTES <= most_bytes:
        occupied = sizes
    else:
        occupied = [size + PAGE_BYTES for size in sizes]
    num_parts = -(-len(sizes) // most_entries)
    most_entries = -(-len(sizes) // num_parts)
    return [
        Batch(entries[part], values[part], sizes[part])
        for part in batches(entries, occupied, most_bytes, most_entries)
    ]


def occupied_bytes(size: int) -> int:
    """Of a run, by a value of `size`, alignment at its end included."""
    return (
        align_up(size, PAGE_BYTES) if size >= PAGE_BYTES else align_up(size or 1, CACHE_LINE_BYTES)
    )


def _padding(size: int) -> bytes:
    return _PADDING[size & _LINE_MASK] if size else _EMPTY_LINE


def _laid_out(sizes: Sequence[int]) -> tuple[Sequence[int], int]:
    """Offsets of values one behind another, and the end of the last. A range when all are
    alike."""
    least, largest = min(sizes), max(sizes)
    if least == largest:
        step = occupied_bytes(least)
        return range(0, step * len(sizes), step), step * len(sizes)
    if least < PAGE_BYTES <= largest:
        return _mixed(sizes)
    ends = list(accumulate(map(occupied_bytes, sizes)))
    return [0, *ends[:-1]], ends[-1]


def _mixed(sizes: Sequence[int]) -> tuple[list[int], int]:
    """With values of a page or more, and smaller ones, among them."""
    offsets, reached = [], 0
    for size in sizes:
        reached = align_up(reached, PAGE_BYTES if size >= PAGE_BYTES else CACHE_LINE_BYTES)
        offsets.append(reached)
        reached += occupied_bytes(size)
    return offsets, reached

"""How the values of one call lie in runs: batch by batch, one behind another."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from moontide.transfer import Bytes
from moontide.transfer.types import CACHE_LINE_BYTES, PAGE_BYTES, align_up

from ..keys import EntryId
from ..run_layout import laid_out
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
        self.offsets, self.num_bytes = laid_out(sizes)

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


def _padding(size: int) -> bytes:
    return _PADDING[size & _LINE_MASK] if size else _EMPTY_LINE

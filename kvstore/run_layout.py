"""How entries lie in a run, one behind another: from a page on at pages, smaller ones at cache
lines."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from moontide.transfer.types import CACHE_LINE_BYTES, PAGE_BYTES, align_up


def occupied_bytes(size: int) -> int:
    """Of a run, by a value of `size`, alignment at its end included."""
    return (
        align_up(size, PAGE_BYTES) if size >= PAGE_BYTES else align_up(size or 1, CACHE_LINE_BYTES)
    )


def laid_out(sizes: Sequence[int]) -> tuple[Sequence[int], int]:
    """Offsets of values one behind another, at least one, and the end of the last. A range when
    all are alike."""
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

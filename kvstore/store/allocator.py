"""Offset allocator of one segment: two-level segregated fit (Masmano et al., 2004).

Free extents sit in bins whose widths grow with their size: 16 bins to a power of two. No object is
kept for a live extent: the caller knows its size and says so when it frees, and may free it in
parts. Sizes from 4 KiB are rounded to whole, aligned pages, smaller ones to cache lines.

    |live|free|live|live|··cursor: the extent small requests are cut from··|live|
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from moontide.transfer.types import CACHE_LINE_BYTES, PAGE_BYTES

_GRANULE = CACHE_LINE_BYTES
_PAGE = PAGE_BYTES // _GRANULE
_EXACT_TRIES = 8
"""Free extents of a request's own bin that are tried before larger bins."""


def occupied_bytes(num_bytes: int) -> int:
    """What an extent of `num_bytes` takes of the segment."""
    return _granules(num_bytes) * _GRANULE


def occupied_bytes_of(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """`occupied_bytes` of each."""
    pages = -(-lengths // PAGE_BYTES) * PAGE_BYTES
    lines = np.maximum(-(-lengths // _GRANULE), 1) * _GRANULE
    return np.where(lengths >= PAGE_BYTES, pages, lines)


def _granules(num_bytes: int) -> int:
    if num_bytes >= PAGE_BYTES:
        return -(-num_bytes // PAGE_BYTES) * _PAGE
    return -(-num_bytes // _GRANULE) or 1


def _bin(size: int) -> int:
    """Bin of a free extent of `size` granules: monotonic, exact below 32."""
    level = size.bit_length() - 5
    return size if level <= 0 else (level << 4) + (size >> level)


def _last(bin_: dict[int, None]) -> int:
    """Newest of a bin. Through popitem, which forgets deleted entries that `reversed` would have
    to step over each time."""
    start, _ = bin_.popitem()
    bin_[start] = None
    return start


class OffsetAllocator:
    """Space of one segment of `num_bytes` (whole pages). Inside, all is in granules of 64 bytes."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._num_granules = num_bytes // _GRANULE
        self._sizes: dict[int, int] = {}  # start of a binned free extent → its size
        self._starts: dict[int, int] = {}  # its end → its start
        self._bins: list[dict[int, None]] = [{} for _ in range(_bin(self._num_granules) + 1)]
        self.keep_only(())

    def keep_only(self, live: Iterable[tuple[int, int]]) -> None:
        """Just the `live` extents (offset, occupied bytes) are taken. In place: a number made anew
        for each segment while millions of others go would keep a page of the heap each."""
        self.used_bytes = 0
        self._sizes.clear()
        self._starts.clear()
        for bin_ in self._bins:
            bin_.clear()
        self._filled = 0  # bit i: bin i is not empty
        self._cursor, self._cursor_end = 0, self._num_granules
        for offset, taken in sorted(live):
            start = offset // _GRANULE
            if start > self._cursor:
                self._insert(self._cursor, start - self._cursor)
            self._cursor = start + taken // _GRANULE
            self.used_bytes += taken

    def allocate(self, num_bytes: int) -> int | None:
        """Offset of a new extent, or None when no free extent holds it."""
        size = _granules(num_bytes)
        alignment = _PAGE if size >= _PAGE else 1
        own = _bin(size)
        start = -1
        if self._filled >> own & 1:
            start = self._take_from_own_bin(self._bins[own], size, alignment)
        if start < 0:
            start = self._take_from_cursor(size, alignment)
        if start < 0 and self._filled >> own:
            start = self._take_from_larger(size, alignment, own)
        if start < 0:
            return None
        self.used_bytes += size * _GRANULE
        return start * _GRANULE

    def free(self, offset: int, num_bytes: int) -> None:
        """Ends the extent that `allocate(num_bytes)` placed at `offset`."""
        self.release(offset, occupied_bytes(num_bytes))

    def release(self, offset: int, taken: int) -> None:
        """Ends `taken` live bytes from `offset` on (whole cache lines): an extent, or a part of
        one."""
        self.used_bytes -= taken
        self._release(offset // _GRANULE, taken // _GRANULE)

    @property
    def largest_free_bytes(self) -> int:
        """Largest request that would fit now, at most."""
        largest = self._cursor_end - self._cursor
        if self._filled:
            top = self._bins[self._filled.bit_length() - 1]
            largest = max(largest, max(self._sizes[start] for start in top))
        return largest * _GRANULE

    def free_extents(self) -> Iterator[tuple[int, int]]:
        """(offset, bytes) of each, in no order."""
        for start, size in self._sizes.items():
            yield start * _GRANULE, size * _GRANULE
        if self._cursor_end > self._cursor:
            yield self._cursor * _GRANULE, (self._cursor_end - self._cursor) * _GRANULE

    def check_integrity(self, live: ArrayLike) -> list[str]:
        """Differences between this allocator and its `live` extents ([n, 2]: offset, occupied
        bytes): together with the free ones they must tile the segment."""
        taken = _extents(live)
        differences = []
        used = int(taken[:, 1].sum())
        if used != self.used_bytes:
            differences.append(f"live extents take {used} bytes, used_bytes is {self.used_bytes}")
        spans = np.concatenate((taken, _extents(list(self.free_extents()))))
        spans = spans[np.lexsort((spans[:, 1], spans[:, 0]))]
        begins = np.append(spans[:, 0], self.num_bytes)
        expected = np.insert(spans.sum(axis=1), 0, 0)
        differences += [
            f"an extent at {begins[index]}, expected one at {expected[index]}"
            for index in np.flatnonzero(begins != expected).tolist()
        ]
        return differences + self._check_bins()

    def _check_bins(self) -> list[str]:
        binned = {start: index for index, bin_ in enumerate(self._bins) for start in bin_}
        expected = {start: _bin(size) for start, size in self._sizes.items()}
        ends = {start + size: start for start, size in self._sizes.items()}
        filled = sum(1 << index for index, bin_ in enumerate(self._bins) if bin_)
        agree = binned == expected and ends == self._starts and filled == self._filled
        return [] if agree else ["the bins disagree with the free extents"]

    # -- taking -----------------------------------------------------------------------

    def _take_from_own_bin(self, bin_: dict[int, None], size: int, alignment: int) -> int:
        """Start of an extent cut from one of the last few in `bin_` (some may be smaller), or
        -1."""
        tried: list[int] = []
        taken = -1
        while bin_ and taken < 0 and len(tried) < _EXACT_TRIES:
            start, _ = bin_.popitem()
            tried.append(start)
            taken = self._aligned_fit(start, size, alignment)
        for start in tried:
            bin_[start] = None
        return taken if taken < 0 else self._cut(tried[-1], taken, size)

    def _aligned_fit(self, start: int, size: int, alignment: int) -> int:
        """Where a request would lie in the free extent at `start`, or -1."""
        aligned = -(-start // alignment) * alignment
        return aligned if aligned + size <= start + self._sizes[start] else -1

    def _take_from_cursor(self, size: int, alignment: int) -> int:
        start = self._cursor
        aligned = -(-start // alignment) * alignment
        stop = aligned + size
        if stop > self._cursor_end:
            return -1
        if aligned > start:
            self._insert(start, aligned - start)
        self._cursor = stop
        return aligned

    def _take_from_larger(self, size: int, alignment: int, own: int) -> int:
        """From a bin that surely holds it; then from any in between that happens to."""
        worst = size + alignment - 1
        sure = _bin(worst + (1 << max(worst.bit_length() - 5, 0)) - 1)
        above = self._filled >> sure
        if above:
            index = sure + (above & -above).bit_length() - 1
            start = _last(self._bins[index])
            if size < _PAGE:
                return self._move_cursor(start, size)
            return self._cut(start, -(-start // alignment) * alignment, size)
        for index in range(own, min(sure, len(self._bins))):
            if self._filled >> index & 1:
                for start in self._bins[index]:
                    aligned = self._aligned_fit(start, size, alignment)
                    if aligned >= 0:
                        return self._cut(start, aligned, size)
        return -1

    def _move_cursor(self, start: int, size: int) -> int:
        """Makes a binned extent the cursor and cuts from it."""
        old, old_end = self._cursor, self._cursor_end
        self._cursor_end = start + self._remove(start)
        self._cursor = start + size
        if old_end > old:
            self._insert(old, old_end - old)
        return start

    def _cut(self, start: int, aligned: int, size: int) -> int:
        stop = start + self._remove(start)
        if aligned > start:
            self._insert(start, aligned - start)
        if stop > aligned + size:
            self._insert(aligned + size, stop - aligned - size)
        return aligned

    # -- free extents -------------------------------------------------------------------

    def _release(self, start: int, size: int) -> None:
        """Joins the extent with its free neighbours."""
        stop = start + size
        before = self._starts.get(start)
        if before is not None:
            self._remove(before)
            start = before
        if stop in self._sizes:
            stop += self._remove(stop)
        if stop == self._cursor and self._cursor < self._cursor_end:
            self._cursor = start
        elif start == self._cursor_end and self._cursor < self._cursor_end:
            self._cursor_end = stop
        else:
            self._insert(start, stop - start)

    def _insert(self, start: int, size: int) -> None:
        self._sizes[start] = size
        self._starts[start + size] = start
        index = _bin(size)
        self._bins[index][start] = None
        self._filled |= 1 << index

    def _remove(self, start: int) -> int:
        size = self._sizes.pop(start)
        del self._starts[start + size]
        index = _bin(size)
        bin_ = self._bins[index]
        del bin_[start]
        if not bin_:
            self._filled &= ~(1 << index)
        return size


def _extents(rows: ArrayLike) -> NDArray[np.int64]:
    return np.asarray(rows, np.int64).reshape(-1, 2)

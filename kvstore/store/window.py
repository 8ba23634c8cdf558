"""The cheapest run of neighbouring entries whose end makes room for one large request."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moontide.transfer.types import CACHE_LINE_BYTES, PAGE_BYTES

from ..slots import HEAD, OFFSET, PLACE, WORDS, SlotState
from .allocator import occupied_bytes
from .catalog import FLUSHED, Catalog
from .eviction import OUT
from .pool import Arena, Pool, PoolSegment

LEAST_WINDOW_BYTES = 1 << 20
"""A window makes room for the next requests too."""
MAX_COMPARED_EXTENTS = 1 << 17
"""Segments are compared until they hold so many extents together: tens of milliseconds' work."""
FLUSHED_WORTH = 0.5
"""What an entry is worth in DRAM, relatively, when the NVMe tier has it too."""


class Extents(NamedTuple):
    """Live extents of one segment, sorted by place and disjoint; what lies between them is free.
    `values` is what each is worth; `held` ones cannot go."""

    slots: NDArray[np.int64]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    values: NDArray[np.float64]
    held: NDArray[np.bool_]


class Window(NamedTuple):
    """Slots whose end makes room, and what they are worth together."""

    slots: list[int]
    value: float


def cheapest_window(
    extents: Extents, segment_bytes: int, num_bytes: int, alignment: int
) -> Window | None:
    """Neighbouring extents, none held, that with the free space around them span `num_bytes` from
    a multiple of `alignment` on: those of the smallest total value. None when there is no such
    run."""
    count = len(extents.slots)
    if not count:
        return None
    free_from = np.concatenate(([0], extents.stops[:-1]))  # when extents i… go
    free_until = np.concatenate((extents.starts[1:], [segment_bytes]))  # when extents …j go
    needed = -(-free_from // alignment) * alignment + num_bytes
    first = np.arange(count)
    last = np.maximum(np.searchsorted(free_until, needed), first)
    possible = last < count
    last = np.minimum(last, count - 1)
    held_before = np.concatenate(([0], np.cumsum(extents.held)))
    possible &= held_before[last + 1] == held_before[first]
    if not possible.any():
        return None
    value_before = np.concatenate(([0.0], np.cumsum(extents.values)))
    costs = np.where(possible, value_before[last + 1] - value_before[first], np.inf)
    best = int(np.argmin(costs))
    return Window(extents.slots[best : last[best] + 1].tolist(), float(costs[best]))


class Windows:
    """Finds windows in a pool. Changes nothing."""

    def __init__(self, catalog: Catalog, pool: Pool) -> None:
        self._catalog = catalog
        self._pool = pool

    def cheapest(self, arena: Arena, num_bytes: int) -> tuple[PoolSegment, Window] | None:
        """Of the arena's segments, beginning with where its coldest entry lies; of a pool with very
        many entries, of the first few."""
        alignment = PAGE_BYTES if num_bytes >= PAGE_BYTES else CACHE_LINE_BYTES
        least = occupied_bytes(num_bytes)
        segment_bytes = self._pool.settings.segment_bytes
        ample = max(least, min(LEAST_WINDOW_BYTES, segment_bytes // 64))
        pictures = self._pictures(arena)
        for size in sorted({ample, least}, reverse=True):
            found = [
                (segment, window)
                for segment, extents in pictures
                if (window := cheapest_window(extents, segment_bytes, size, alignment)) is not None
            ]
            if found:
                return min(found, key=lambda place: place[1].value)
        return None

    def extents(self, segment: PoolSegment) -> Extents:
        """An entry is worth what its arena's policy says of a byte, times its bytes."""
        return self._extents_at(segment, np.flatnonzero(self._segments_of_live() == segment.index))

    def held(self, slots: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Pinned, guarded, not committed, or in no queue yet since a colder tier has to have it
        first."""
        catalog = self._catalog
        pins = np.frombuffer(catalog.pins, np.uint32)[slots]
        queues = np.frombuffer(catalog.links.queue, np.uint8)[slots]
        states = catalog.table.rows()[slots, HEAD] & 0xFF
        held: NDArray[np.bool_] = (pins > 0) | (queues == OUT) | (states != SlotState.COMMITTED)
        if catalog.guarded:
            editions = np.frombuffer(catalog.namespaces, np.uint16)[slots]
            held |= np.isin(editions, list(catalog.guarded))
        return held

    def _pictures(self, arena: Arena) -> list[tuple[PoolSegment, Extents]]:
        places = self._segments_of_live()
        coldest = arena.policy.coldest()
        first = self._catalog.words[coldest * WORDS + PLACE] >> 32 if coldest else -1
        segments = [segment for segment in arena.segments if not segment.asked]
        pictures, num_extents = [], 0
        for segment in sorted(segments, key=lambda segment: segment.index != first):
            extents = self._extents_at(segment, np.flatnonzero(places == segment.index))
            pictures.append((segment, extents))
            num_extents += len(extents.slots)
            if num_extents >= MAX_COMPARED_EXTENTS:
                break
        return pictures

    def _segments_of_live(self) -> NDArray[np.int64]:
        """Of each slot, the segment it lies in; -1 of free ones."""
        rows = self._catalog.table.rows()
        segments = (rows[:, PLACE] >> 32).astype(np.int64)
        segments[rows[:, HEAD] & 0xFF == SlotState.FREE] = -1
        return segments

    def _extents_at(self, segment: PoolSegment, live: NDArray[np.int64]) -> Extents:
        catalog, arena = self._catalog, segment.arena
        assert arena is not None
        offsets = catalog.table.rows()[live, OFFSET].astype(np.int64)
        order = np.argsort(offsets, kind="stable")
        live, starts = live[order], offsets[order]
        taken = catalog.occupied_of(live)
        flushed = np.frombuffer(catalog.flags, np.uint8)[live] & FLUSHED != 0
        worth = arena.policy.worth(live) * np.where(flushed, FLUSHED_WORTH, 1.0)
        return Extents(live, starts, starts + taken, worth * taken, self.held(live))

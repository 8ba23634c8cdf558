"""The cheapest run of neighbouring entries whose end makes room for one large request."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Extents(NamedTuple):
    """Live extents of one segment, sorted by place and disjoint; what lies between them is free.
    `values` is what each is worth; `held` ones cannot go."""

    slots: NDArray[np.int64]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    values: NDArray[np.float64]
    held: NDArray[np.bool_]


def cheapest_window(
    extents: Extents, segment_bytes: int, num_bytes: int, alignment: int
) -> list[int] | None:
    """Slots of neighbouring extents, none held, that with the free space around them span
    `num_bytes` from a multiple of `alignment` on: those of the smallest total value. None when
    there is no such run."""
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
    return [int(slot) for slot in extents.slots[best : last[best] + 1]]

"""The cheapest of very many entries, found in parts of a few milliseconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_PROBES_AT_ONCE = 8
_HIGHEST = (1 << 63) - 1


class _Part(NamedTuple):
    slots: NDArray[np.int64]  # cheapest first
    ranks: NDArray[np.int64]
    sums: NDArray[np.int64]  # bytes of the first 0, 1, 2 …


class Cheapest:
    """Sorts part by part what is added, then looks for the price that all together cost just
    enough at: sorting a million at once would take a tenth of a second."""

    def __init__(self) -> None:
        self._parts: list[_Part] = []

    def add(
        self, slots: NDArray[np.int64], worth: NDArray[np.float64], taken: NDArray[np.int64]
    ) -> None:
        """A part: what each is worth (at least 0), and the bytes it takes."""
        ranks = worth.astype(np.float64).view(np.int64)  # in the same order
        order = np.argsort(ranks, kind="stable")
        sums = np.concatenate(([0], np.cumsum(taken[order])))
        self._parts.append(_Part(slots[order], ranks[order], sums))

    def choose(self, num_bytes: int, chosen: list[NDArray[np.int64]]) -> Iterator[None]:
        """Fills `chosen` with no more than are needed for so many bytes."""
        low, high = 0, _HIGHEST  # the highest rank that is needed lies here
        while low < high:
            for _ in range(_PROBES_AT_ONCE):
                middle = (low + high) // 2
                is_enough = self._bytes_up_to(middle) >= num_bytes
                low, high = (low, middle) if is_enough else (min(middle + 1, high), high)
            yield
        missing = num_bytes
        for part in self._parts:
            count = int(np.searchsorted(part.ranks, high))
            missing -= int(part.sums[count])
            chosen.append(part.slots[:count])
        for part in self._parts:
            first = int(np.searchsorted(part.ranks, high))
            last = int(np.searchsorted(part.ranks, high, "right"))
            sums = part.sums[first : last + 1] - part.sums[first]
            count = int(np.searchsorted(sums[:-1], missing))
            missing -= int(sums[count])
            chosen.append(part.slots[first : first + count])

    def _bytes_up_to(self, rank: int) -> int:
        return sum(
            int(part.sums[np.searchsorted(part.ranks, rank, "right")]) for part in self._parts
        )

"""A burst of blocks into a store with an NVMe tier, and all of them back."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from itertools import compress
from typing import Any

from ....client import StoreClient
from ....types import PutStatus
from ..areas import STAMP, Area, filled
from ..contract import Failed

BATCH = 8
RETRY_SECONDS = 0.005
FLUSH_SECONDS = 120.0


class Disk:
    def __init__(self, writer: StoreClient, reader: StoreClient) -> None:
        self._writer = writer
        self._reader = reader

    def burst(self, request: Mapping[str, Any]) -> dict[str, float]:
        """Puts numbered blocks, BATCH a call, as fast as they are taken, FULL ones again a little
        later, and waits until the disk has all of them."""
        size = request["block_bytes"]
        source = filled(size * BATCH)
        retries = 0
        start = time.perf_counter()
        for numbers in _batches(request):
            values: dict[str, memoryview] = {}
            for place, number in enumerate(numbers):
                values[f"b{number}"] = _stamped(source, place * size, size, number)
            retries += self._put(values)
        taken = time.perf_counter() - start
        self._wait_until_flushed(start + FLUSH_SECONDS)
        flushed = time.perf_counter() - start
        return {"taken_seconds": taken, "flushed_seconds": flushed, "retries": retries}

    def read_back(self, request: Mapping[str, Any]) -> dict[str, float]:
        """Gets all of them, in order, BATCH a call; how many are lost or differ."""
        size = request["block_bytes"]
        expected, target = filled(size * BATCH), Area(size * BATCH)
        targets = [target.view[n * size : (n + 1) * size] for n in range(BATCH)]
        lost, seconds = 0, 0.0
        for numbers in _batches(request):
            keys, batch = [f"b{number}" for number in numbers], targets[: len(numbers)]
            start = time.perf_counter()
            sizes = self._reader.get_many_into(keys, batch)
            seconds += time.perf_counter() - start
            for place, number in enumerate(numbers):
                block = _stamped(expected, place * size, size, number)
                lost += sizes[place] != size or bytes(batch[place]) != bytes(block)
        return {"seconds": seconds, "lost": lost}

    def _put(self, values: dict[str, memoryview]) -> int:
        """How many had to be offered again, each time counted."""
        retries = 0
        while True:
            results = self._writer.put_many(list(values.items()))
            for result in results:
                if result.status not in (PutStatus.STORED, PutStatus.FULL):
                    raise Failed(f"a put was {result.status.name}: {result.reason}")
            refused = [result.status is PutStatus.FULL for result in results]
            values = dict(compress(values.items(), refused))
            if not values:
                return retries
            retries += len(values)
            time.sleep(RETRY_SECONDS)

    def _wait_until_flushed(self, deadline: float) -> None:
        while not self._is_flushed():
            if time.perf_counter() > deadline:
                raise Failed(f"not all was on disk within {FLUSH_SECONDS:g} s")
            time.sleep(RETRY_SECONDS)

    def _is_flushed(self) -> bool:
        """Whether all that is in DRAM is on disk, too."""
        dram = self._writer.stats()["tiers"]["dram"]
        return bool(dram["flushed"] == dram["entries"])


def _stamped(area: Area, offset: int, size: int, number: int) -> memoryview:
    """The block of that number."""
    STAMP.pack_into(area.memory, offset, number)
    return area.view[offset : offset + size]


def _batches(request: Mapping[str, Any]) -> Iterator[range]:
    """The numbers of the blocks of one call after another."""
    end = request["first"] + request["count"]
    for first in range(request["first"], end, BATCH):
        yield range(first, min(first + BATCH, end))

"""A burst of blocks into a store with an NVMe tier, and all of them back."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ....client import StoreClient
from ....types import PutStatus
from .contract import Area, Failed
from .timing import STAMP, filled

READ_BATCH = 8
RETRY_SECONDS = 0.005
FLUSH_SECONDS = 120.0


class Disk:
    def __init__(self, writer: StoreClient, reader: StoreClient) -> None:
        self._writer = writer
        self._reader = reader

    def burst(self, request: Mapping[str, Any]) -> dict[str, float]:
        """Puts numbered blocks as fast as they are taken, a FULL one again a little later, and
        waits until the disk has all of them."""
        block = filled(request["block_bytes"])
        retries = 0
        start = time.perf_counter()
        for number in range(request["first"], request["first"] + request["count"]):
            STAMP.pack_into(block.memory, 0, number)
            retries += self._put(f"b{number}", block.view)
        taken = time.perf_counter() - start
        self._wait_until_flushed(start + FLUSH_SECONDS)
        flushed = time.perf_counter() - start
        return {"taken_seconds": taken, "flushed_seconds": flushed, "retries": retries}

    def read_back(self, request: Mapping[str, Any]) -> dict[str, float]:
        """Gets all of them, in order, READ_BATCH a call; how many are lost or differ."""
        size = request["block_bytes"]
        expected, target = filled(size), Area(size * READ_BATCH)
        targets = [target.view[n * size : (n + 1) * size] for n in range(READ_BATCH)]
        lost, seconds = 0, 0.0
        end = request["first"] + request["count"]
        for first in range(request["first"], end, READ_BATCH):
            numbers = range(first, min(first + READ_BATCH, end))
            keys, batch = [f"b{number}" for number in numbers], targets[: len(numbers)]
            start = time.perf_counter()
            sizes = self._reader.get_many_into(keys, batch)
            seconds += time.perf_counter() - start
            for number, got, buffer in zip(numbers, sizes, batch, strict=True):
                STAMP.pack_into(expected.memory, 0, number)
                lost += got != size or bytes(buffer) != bytes(expected.view)
        return {"seconds": seconds, "lost": lost}

    def _put(self, key: str, value: memoryview) -> int:
        """How often it had to be offered again."""
        retries = 0
        while True:
            result = self._writer.put(key, value)
            if result.status is PutStatus.STORED:
                return retries
            if result.status is not PutStatus.FULL:
                raise Failed(f"a put was {result.status.name}: {result.reason}")
            retries += 1
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

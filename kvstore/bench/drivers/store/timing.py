"""Timed calls. Only the call itself lies between two readings of the clock; keys, regions, removal
of what was put and comparison of what was read do not."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ..areas import Area, Areas
from ..contract import Failed
from ..serving import Operation
from .contract import Region, Store

RING_BYTES = 128 << 20
"""Values of one size cycle through so much memory (or 8 calls' worth of small ones)."""
RING_CALLS = 8
LEAST_CALLS = 2
MOST_UNSEEN_CALLS = 100
"""All that they get is put before, outside of what is timed."""
LEAST_MIXED_BYTES = 4 << 10

RingSize = tuple[int, int, int]  # bytes of a value, values of a call, most bytes in all

_numbers = itertools.count()


def ring_bytes(num_bytes: int, batch: int, most: int = RING_BYTES) -> int:
    """Of whole calls; at least one's."""
    call = num_bytes * batch
    return max(call, min(RING_CALLS * call, min(RING_BYTES, most) // call * call))


class Ring:
    """Source and target of values of one size; slot i of the target is filled from an entry that
    was put from slot i of the source."""

    def __init__(self, store: Store, areas: Areas, size: RingSize) -> None:
        num_bytes, batch, most = size
        total = ring_bytes(num_bytes, batch, most)
        self.source, self.target = areas.of(total)
        self.num_bytes = num_bytes
        self.batch = batch
        self.num_slots = total // num_bytes
        offsets = range(0, total, num_bytes)
        self.values = [store.region(self.source, offset, num_bytes) for offset in offsets]
        self.targets = [store.region(self.target, offset, num_bytes) for offset in offsets]

    def calls(self) -> Iterator[slice]:
        """The slots of one call after another, for ever."""
        while True:
            for first in range(0, self.num_slots, self.batch):
                yield slice(first, first + self.batch)

    def wipe(self, slots: slice) -> None:
        for index in self._sample(slots):
            self._bytes(self.target, index)[:] = bytes(self.num_bytes)

    def check(self, slots: slice) -> None:
        """Raises Failed unless the targets have what their sources have."""
        for index in self._sample(slots):
            if bytes(self._bytes(self.target, index)) != bytes(self._bytes(self.source, index)):
                raise Failed(f"a value of {self.num_bytes} bytes came back with other bytes")

    def _sample(self, slots: slice) -> set[int]:
        return {slots.start, slots.stop - 1}

    def _bytes(self, area: Area, index: int) -> memoryview:
        return area.view[index * self.num_bytes : (index + 1) * self.num_bytes]


class Bench:
    """The operations every contestant is asked for."""

    def __init__(self, store: Store, area_bytes: int) -> None:
        self._store = store
        self._areas = Areas(area_bytes)
        self._rings: dict[RingSize, Ring] = {}

    def operations(self) -> dict[str, Operation]:
        """By the name under which each is asked for."""
        return {
            "put": self.put,
            "get": self.get,
            "get_unseen": self.get_unseen,
            "fill": self.fill,
            "exists": self.exists,
            "mixed": self.mixed,
            "clear": self.clear,
        }

    def put(self, request: Mapping[str, Any]) -> list[float]:
        """Seconds of each call that puts `batch` new values."""
        ring, keep = self._ring(request), request["keep_bytes"]
        clock = Clock(request)
        kept: list[str] = []
        for slots in ring.calls():
            keys, values = _new_keys(ring.batch), ring.values[slots]
            clock.time(partial(self._put, keys, values), ring.batch)
            kept += keys
            done = clock.is_done()
            if done:
                self._check(ring, kept[-ring.batch :], slots)
            if done or (len(kept) + ring.batch) * ring.num_bytes > keep:
                self._store.remove_many(kept)
                kept.clear()
            if done:
                break
        return clock.seconds

    def get(self, request: Mapping[str, Any]) -> list[float]:
        """Seconds of each call that gets `batch` values that were got before."""
        ring = self._ring(request)
        keys = _new_keys(ring.num_slots)
        spans = [slice(n, n + ring.batch) for n in range(0, ring.num_slots, ring.batch)]
        for slots in spans:
            _expect(self._put(keys[slots], ring.values[slots]), ring.batch)
            _expect(self._get(keys[slots], ring.targets[slots]), ring.batch)
        clock = Clock(request)
        ring.wipe(spans[0])
        for slots in ring.calls():
            clock.time(partial(self._get, keys[slots], ring.targets[slots]), ring.batch)
            if clock.is_done():
                break
        ring.check(spans[0])
        self._store.remove_many(keys)
        return clock.seconds

    def get_unseen(self, request: Mapping[str, Any]) -> list[float]:
        """Seconds of each call that gets `batch` values that this reader never asked for."""
        ring = self._ring(request)
        fitting = max(1, request["keep_bytes"] // (ring.batch * ring.num_bytes))
        clock = Clock({**request, "calls": min(request["calls"], fitting, MOST_UNSEEN_CALLS)})
        calls = list(itertools.islice(ring.calls(), clock.num_calls))
        keys = [_new_keys(ring.batch) for _ in calls]
        for batch, slots in zip(keys, calls, strict=True):
            _expect(self._put(batch, ring.values[slots]), ring.batch)
        ring.wipe(calls[0])
        for batch, slots in zip(keys, calls, strict=True):
            clock.time(partial(self._get, batch, ring.targets[slots]), ring.batch)
        ring.check(calls[0])
        self._store.remove_many([key for batch in keys for key in batch])
        return clock.seconds

    def fill(self, request: Mapping[str, Any]) -> list[float]:
        """Seconds of each call that puts `batch` of the numbered entries; they stay."""
        ring = self._ring(request)
        clock = Clock(request)
        for first in range(request["first"], request["first"] + request["count"], ring.batch):
            keys = numbered(first, ring.batch)
            clock.time(partial(self._put, keys, ring.values[: ring.batch]), ring.batch)
        return clock.seconds

    def exists(self, request: Mapping[str, Any]) -> list[float]:
        """Seconds of each call that asks for `batch` of `among` numbered entries, all there."""
        rng = random.Random(request["batch"])
        clock = Clock(request)
        while not clock.is_done():
            keys = [f"n{rng.randrange(request['among'])}" for _ in range(request["batch"])]
            clock.time(partial(self._store.count_existing, keys), request["batch"])
        return clock.seconds

    def mixed(self, request: Mapping[str, Any]) -> dict[str, int]:
        """Puts of mixed sizes until `total_bytes` were offered: how many, how many refused."""
        rng = random.Random(request["seed"])
        source, _ = self._areas.of(request["largest"])
        offered = num_puts = refused = 0
        while offered < request["total_bytes"]:
            num_bytes = _mixed_size(rng, request["largest"])
            (key,) = _new_keys(1)
            refused += not self._store.put(key, self._store.region(source, 0, num_bytes))
            num_puts += 1
            offered += num_bytes
        return {"puts": num_puts, "refused": refused, "bytes": offered}

    def clear(self, request: Mapping[str, Any]) -> None:
        self._store.clear()

    def _ring(self, request: Mapping[str, Any]) -> Ring:
        size = request["size_bytes"], request["batch"], request["keep_bytes"]
        if size not in self._rings:
            self._rings = {size: Ring(self._store, self._areas, size)}
        return self._rings[size]

    def _put(self, keys: Sequence[str], values: Sequence[Region]) -> int:
        if len(keys) == 1:
            return int(self._store.put(keys[0], values[0]))
        return self._store.put_many(keys, values)

    def _get(self, keys: Sequence[str], targets: Sequence[Region]) -> int:
        if len(keys) == 1:
            return int(self._store.get(keys[0], targets[0]))
        return self._store.get_many(keys, targets)

    def _check(self, ring: Ring, keys: Sequence[str], slots: slice) -> None:
        ring.wipe(slots)
        _expect(self._get(keys, ring.targets[slots]), ring.batch)
        ring.check(slots)


class Clock:
    """Seconds of single calls, until there are `calls` or `budget_seconds` are spent."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self.num_calls: int = request["calls"]
        self.seconds: list[float] = []
        self._left: float = request["budget_seconds"]

    def time(self, call: Callable[[], int], expected: int) -> None:
        start = time.perf_counter()
        done = call()
        spent = time.perf_counter() - start
        _expect(done, expected)
        self.seconds.append(spent)
        self._left -= spent

    def is_done(self) -> bool:
        num_calls = len(self.seconds)
        return num_calls >= self.num_calls or (self._left <= 0 and num_calls >= LEAST_CALLS)


def numbered(first: int, count: int) -> list[str]:
    return [f"n{number}" for number in range(first, first + count)]


def _new_keys(count: int) -> list[str]:
    return [f"k{next(_numbers)}" for _ in range(count)]


def _mixed_size(rng: random.Random, largest: int) -> int:
    """Every doubling as likely as the next."""
    doublings = (largest // LEAST_MIXED_BYTES).bit_length() - 1
    return LEAST_MIXED_BYTES << rng.randint(0, doublings)


def _expect(done: int, expected: int) -> None:
    if done != expected:
        raise Failed(f"{done} of {expected} entries of a call came through")

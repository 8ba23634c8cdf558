"""Timed transfers of one contestant. Only the call lies between two readings of the clock."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..areas import Area
from ..contract import Failed
from ..serving import Operation
from .contract import READ, READ_BACK, WIPE, WRITE, Call, Local, Mover, Span, Way

RING_BYTES = 128 << 20
"""Calls of one thread cycle through so much memory at most (or 8 calls' worth of small ones)."""
RING_CALLS = 8
LEAST_CALLS = 2
MOST_CALLS = 4000
Lane = Sequence[Call]
"""What one thread calls, over and over."""
Calls = Mapping[str, int]


class Bench:
    """The operations every contestant is asked for: `read` and `write`."""

    def __init__(
        self, mover: Mover, areas: tuple[Area, Area], server_cpu_seconds: Callable[[], float]
    ) -> None:
        self._mover = mover
        self._areas = areas
        self._server_cpu_seconds = server_cpu_seconds
        self._opened: tuple[int, int] | None = None

    def operations(self) -> dict[str, Operation]:
        return {"read": self.read, "write": self.write}

    def read(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Seconds of each call of all threads, bytes and seconds of all together, processor seconds
        of both processes."""
        lanes = self._lanes(READ, request)
        slices = _slices(request, 0)
        self._clear(slices)
        lanes[0][0]()
        self._compare(slices)
        return self._timed(lanes, request)

    def write(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """As `read`."""
        lanes = self._lanes(WRITE, request)
        slices = _slices(request, 0)
        self._clear(slices)
        self._mover.prepare(WIPE, slices, 0)()
        lanes[0][0]()
        self._mover.prepare(READ_BACK, slices, 0)()
        self._compare(slices)
        return self._timed(lanes, request)

    def _lanes(self, way: Way, request: Mapping[str, Any]) -> list[Lane]:
        """Each thread has a part of the areas of its own."""
        streams, threads = request["streams"], request["threads"]
        if self._opened != (streams, threads):
            self._mover.open(streams, threads)
            self._opened = (streams, threads)
        call_bytes = request["size_bytes"] * request["batch"]
        lane_bytes = len(self._areas[Local.SOURCE]) // threads // call_bytes * call_bytes
        ring_bytes = max(RING_BYTES // threads // call_bytes * call_bytes, call_bytes)
        if lane_bytes < call_bytes:
            raise Failed(f"{threads} calls of {call_bytes} bytes do not fit the areas")
        num_calls = min(RING_CALLS, min(lane_bytes, ring_bytes) // call_bytes)
        return [
            [
                self._mover.prepare(way, _slices(request, first + number * call_bytes), thread)
                for number in range(num_calls)
            ]
            for thread, first in enumerate(range(0, threads * lane_bytes, lane_bytes))
        ]

    def _timed(self, lanes: Sequence[Lane], request: Mapping[str, Any]) -> dict[str, Any]:
        cpu_seconds = time.process_time() + self._server_cpu_seconds()
        start = time.perf_counter()
        seconds = _in_turn(lanes, request["budget_seconds"])
        elapsed = time.perf_counter() - start
        cpu_seconds = time.process_time() + self._server_cpu_seconds() - cpu_seconds
        return {
            "seconds": seconds,
            "bytes": len(seconds) * request["size_bytes"] * request["batch"],
            "elapsed_seconds": elapsed,
            "cpu_seconds": cpu_seconds,
        }

    def _clear(self, slices: Sequence[Span]) -> None:
        for offset, length in slices:
            self._areas[Local.TARGET].view[offset : offset + length] = bytes(length)

    def _compare(self, slices: Sequence[Span]) -> None:
        """The target has what the source has: both halves began with the same bytes."""
        source, target = (area.view for area in self._areas)
        for offset, length in slices:
            span = slice(offset, offset + length)
            if bytes(source[span]) != bytes(target[span]):
                raise Failed(f"a slice of {length} bytes came with other bytes")


def _slices(request: Mapping[str, Any], first: int) -> list[Span]:
    size = request["size_bytes"]
    return [Span(first + number * size, size) for number in range(request["batch"])]


def _in_turn(lanes: Sequence[Lane], budget_seconds: float) -> list[float]:
    """Every lane on a thread of its own, a single one on this. Raises what a call raised."""
    if len(lanes) == 1:
        return _repeat(lanes[0], budget_seconds)
    seconds: list[float] = []
    errors: list[Exception] = []
    started = threading.Barrier(len(lanes))

    def run(lane: Lane) -> None:
        started.wait()
        try:
            seconds.extend(_repeat(lane, budget_seconds))
        except Exception as error:  # noqa: BLE001 - thread boundary: raised again below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(lane,)) for lane in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return seconds


def _repeat(lane: Lane, budget_seconds: float) -> list[float]:
    seconds: list[float] = []
    now = time.perf_counter()
    end = now + budget_seconds
    for call in itertools.islice(itertools.cycle(lane), MOST_CALLS):
        call()
        before, now = now, time.perf_counter()
        seconds.append(now - before)
        if now >= end and len(seconds) >= LEAST_CALLS:
            break
    return seconds

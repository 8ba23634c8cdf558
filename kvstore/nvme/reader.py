"""Threads that bring extents in: read, decode, verify."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from moontide.transfer import aligned_buffer, checksum, copy, is_aligned
from moontide.transfer.types import PAGE_BYTES, align_up

from ..errors import Corrupt
from .codec import Codec
from .counters import ReaderCounters
from .records import EntryRecord, StoredExtent
from .region import Region
from .storage import DISK_ERRORS
from .types import ExtentRead

_log = logging.getLogger(__name__)
RUN_BYTES = 4 << 20
"""Neighbouring extents are read together up to this size, and threads share work in such pieces."""


class _Read(NamedTuple):
    position: int  # in the caller's list
    location: EntryRecord
    extent: StoredExtent
    destination: memoryview

    @property
    def is_straight(self) -> bool:
        """From the file into its destination, without a copy."""
        extent = self.extent
        return (
            extent.stored_length == extent.length
            and extent.offset % PAGE_BYTES == 0
            and is_aligned(self.destination)
        )


class _Batch:
    """Reads given together. A thread plans it into runs, any thread takes a run, and the last run
    to end reports."""

    def __init__(
        self,
        requests: Sequence[ExtentRead],
        regions: Mapping[int, Region],
        done: Callable[[list[bool]], None],
    ) -> None:
        self.requests = requests
        self.regions = regions
        self.done = done
        self.results = [False] * len(requests)
        self.runs_left = 1

    def plan(self) -> list[_Run]:
        runs = [
            _Run(self, self.regions.get(reads[0].location.region), reads)
            for reads in _runs(self.requests)
        ]
        self.runs_left = len(runs)
        return runs


class _Run(NamedTuple):
    """Neighbours in one region."""

    batch: _Batch
    region: Region | None  # None: gone
    reads: list[_Read]


class Reader:
    """`submit` never blocks; `on_damaged` and a batch's `done` run on a reader's thread."""

    def __init__(
        self,
        *,
        num_threads: int,
        max_extents: int,
        on_damaged: Callable[[EntryRecord], None],
        counters: ReaderCounters,
    ) -> None:
        self._max_extents = max_extents
        self._on_damaged = on_damaged
        self._counters = counters
        self._queue: deque[_Batch | _Run] = deque()
        self._pending = 0  # extents queued or being read
        self._changed = threading.Condition()
        self._closing = False
        self._threads = [
            threading.Thread(target=self._work, name=f"nvme-reader-{number}", daemon=True)
            for number in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pending(self) -> int:
        return self._pending

    def submit(
        self,
        requests: Sequence[ExtentRead],
        regions: Mapping[int, Region],
        done: Callable[[list[bool]], None],
    ) -> bool:
        """False: the queue is full. A batch of any size is taken when nothing else is pending."""
        with self._changed:
            if self._closing:
                return False
            if self._pending and self._pending + len(requests) > self._max_extents:
                return False
            self._pending += len(requests)
            self._queue.append(_Batch(requests, regions, done))
            self._changed.notify()
        return True

    def close(self, timeout_s: float) -> bool:
        """Queued reads fail, those that a thread has begun end. Returns whether all threads have
        ended."""
        with self._changed:
            self._closing = True
            rest = list(self._queue)
            self._queue.clear()
            self._changed.notify_all()
        for item in rest:
            if isinstance(item, _Batch):
                self._finish(item, len(item.requests), [])
            else:
                self._finish(item.batch, len(item.reads), [])
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self) -> None:
        desk = _Desk()
        while (item := self._next()) is not None:
            run = self._plan(item) if isinstance(item, _Batch) else item
            if run is None:
                continue
            good: list[_Read] = []
            try:
                good = self._read(run, desk)
            except Exception:  # noqa: BLE001  boundary of a reader's thread: the run fails
                _log.exception("nvme_reader_failed extents=%d", len(run.reads))
            self._finish(run.batch, len(run.reads), good)

    def _next(self) -> _Batch | _Run | None:
        """None: closed."""
        with self._changed:
            while not self._queue and not self._closing:
                self._changed.wait()
            return self._queue.popleft() if self._queue else None

    def _plan(self, batch: _Batch) -> _Run | None:
        """A run of the batch for this thread; the others are queued before later batches."""
        try:
            runs = batch.plan()
        except Exception:  # noqa: BLE001  boundary of a reader's thread: the batch fails
            _log.exception("nvme_reader_failed extents=%d", len(batch.requests))
            runs = []
        if not runs:
            batch.runs_left = 1
            self._finish(batch, len(batch.requests), [])
            return None
        with self._changed:
            self._queue.extendleft(reversed(runs[1:]))
            self._changed.notify(len(runs) - 1)
        return runs[0]

    def _read(self, run: _Run, desk: _Desk) -> list[_Read]:
        """The reads whose destination now holds verified bytes."""
        region = run.region
        if region is None or not region.use():
            return []
        try:
            good = desk.bring_in(region, run.reads)
        except DISK_ERRORS as error:
            _log.error("nvme_read_failed region=%d reason=%s", region.id, error)
            with self._changed:
                self._counters.disk_errors += 1
            good = self._one_by_one(region, run.reads, desk)
        finally:
            region.leave()
        self._report_damage(run.reads, good)
        return good

    def _one_by_one(self, region: Region, reads: Sequence[_Read], desk: _Desk) -> list[_Read]:
        """What can be read of a run that as a whole cannot."""
        good: list[_Read] = []
        for read in reads:
            try:
                good += desk.bring_in(region, [read])
            except DISK_ERRORS:
                continue
        return good

    def _report_damage(self, reads: Sequence[_Read], good: Sequence[_Read]) -> None:
        if len(good) == len(reads):
            return
        fine = {read.position for read in good}
        damaged = [read for read in reads if read.position not in fine]
        with self._changed:
            self._counters.corrupt += len(damaged)
        for location in {id(read.location): read.location for read in damaged}.values():
            _log.warning(
                "nvme_extent_damaged region=%d ordinal=%d", location.region, location.ordinal
            )
            self._on_damaged(location)

    def _finish(self, batch: _Batch, num_reads: int, good: Sequence[_Read]) -> None:
        with self._changed:
            for read in good:
                batch.results[read.position] = True
                self._counters.bytes_out += read.extent.length
            self._pending -= num_reads
            batch.runs_left -= 1
            is_last = batch.runs_left == 0
        if is_last:
            batch.done(batch.results)


class _Desk:
    """One thread's buffer and decompressor."""

    def __init__(self) -> None:
        self._codec = Codec()
        self._buffer = aligned_buffer(RUN_BYTES + PAGE_BYTES)

    def bring_in(self, region: Region, reads: Sequence[_Read]) -> list[_Read]:
        """Reads neighbours; returns those that match their checksum. Raises one of DISK_ERRORS."""
        first, last = reads[0].extent, reads[-1].extent
        if all(read.is_straight for read in reads):
            region.file.read_into([read.destination for read in reads], first.offset)
        else:
            start = first.offset // PAGE_BYTES * PAGE_BYTES
            end = align_up(last.offset + last.stored_length, PAGE_BYTES)
            data = self._room_for(end - start)
            region.file.read_into([data], start)
            reads = [
                read for read in reads if self._decode(read, data[read.extent.offset - start :])
            ]
        return [read for read in reads if checksum(read.destination) == read.extent.checksum]

    def _decode(self, read: _Read, data: memoryview) -> bool:
        stored = data[: read.extent.stored_length]
        if len(stored) == read.extent.length:
            copy(read.destination, stored)
            return True
        try:
            self._codec.decompress(stored, read.destination, read.location.element_bytes)
        except Corrupt:
            return False
        return True

    def _room_for(self, num_bytes: int) -> memoryview:
        """A larger buffer than usual lives for one read."""
        if num_bytes > len(self._buffer):
            return aligned_buffer(num_bytes)
        return self._buffer[:num_bytes]


def _runs(requests: Sequence[ExtentRead]) -> list[list[_Read]]:
    """Reads in runs of neighbours: extents that follow one another in a region, straight ones
    without a gap, at most RUN_BYTES a run."""
    reads = [
        _Read(position, location, location.extents[extent], memoryview(destination).cast("B"))
        for position, (location, extent, destination) in enumerate(requests)
    ]
    reads.sort(key=lambda read: (read.location.region, read.extent.offset))
    runs: list[list[_Read]] = []
    room = end = 0
    for read in reads:
        extent = read.extent
        gap = extent.offset - end
        is_next = runs and runs[-1][-1].location.region == read.location.region
        joins = is_next and 0 <= gap < PAGE_BYTES and extent.stored_length <= room
        if (
            joins
            and read.is_straight == runs[-1][-1].is_straight
            and not (gap and read.is_straight)
        ):
            runs[-1].append(read)
        else:
            runs.append([read])
            room = RUN_BYTES
        room -= extent.stored_length
        end = extent.offset + extent.stored_length
    return runs

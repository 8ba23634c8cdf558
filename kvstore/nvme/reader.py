"""Threads that bring extents in."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from .counters import ReaderCounters
from .read_desk import ReadDesk
from .records import EntryRecord
from .region import Region
from .spans import Read, spans_of
from .storage import DISK_ERRORS
from .types import ExtentRead

logger = logging.getLogger(__name__)


class _Batch:
    """Reads given together. A thread plans it into spans, any thread takes one, and the last
    that ends reports."""

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
        self.spans_left = 1

    def plan(self) -> list[_Span]:
        spans = [
            _Span(self, self.regions.get(reads[0].location.region), reads)
            for reads in spans_of(self.requests)
        ]
        self.spans_left = len(spans)
        return spans


class _Span(NamedTuple):
    """Neighbours in one region."""

    batch: _Batch
    region: Region | None  # None: gone
    reads: list[Read]


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
        self._queue: deque[_Batch | _Span] = deque()
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
        desk = ReadDesk()
        while (item := self._next()) is not None:
            span = self._plan(item) if isinstance(item, _Batch) else item
            if span is None:
                continue
            good: list[Read] = []
            try:
                good = self._read(span, desk)
            except Exception:  # boundary of a reader's thread: the span fails
                logger.exception("nvme_reader_failed extents=%d", len(span.reads))
            self._finish(span.batch, len(span.reads), good)

    def _next(self) -> _Batch | _Span | None:
        """None: closed."""
        with self._changed:
            while not self._queue and not self._closing:
                self._changed.wait()
            return self._queue.popleft() if self._queue else None

    def _plan(self, batch: _Batch) -> _Span | None:
        """A span of the batch for this thread; the others are queued before later batches."""
        try:
            spans = batch.plan()
        except Exception:  # boundary of a reader's thread: the batch fails
            logger.exception("nvme_reader_failed extents=%d", len(batch.requests))
            spans = []
        if not spans:
            batch.spans_left = 1
            self._finish(batch, len(batch.requests), [])
            return None
        with self._changed:
            self._queue.extendleft(reversed(spans[1:]))
            self._changed.notify(len(spans) - 1)
        return spans[0]

    def _read(self, span: _Span, desk: ReadDesk) -> list[Read]:
        """The reads whose destination now holds verified bytes."""
        region, requests = span.region, span.batch.requests
        reads = [read for read in span.reads if requests[read.position].is_wanted()]
        if not reads or region is None or not region.use():
            return []
        try:
            good = desk.bring_in(region, reads)
        except DISK_ERRORS as error:
            logger.error("nvme_read_failed region=%d reason=%s", region.id, error)
            with self._changed:
                self._counters.disk_errors += 1
            good = self._one_by_one(region, reads, desk)
        finally:
            region.leave()
        self._report_damage(reads, good)
        return good

    def _one_by_one(self, region: Region, reads: Sequence[Read], desk: ReadDesk) -> list[Read]:
        """What can be read of a span that as a whole cannot."""
        good: list[Read] = []
        for read in reads:
            try:
                good += desk.bring_in(region, [read])
            except DISK_ERRORS:
                continue
        return good

    def _report_damage(self, reads: Sequence[Read], good: Sequence[Read]) -> None:
        if len(good) == len(reads):
            return
        fine = {read.position for read in good}
        damaged = [read for read in reads if read.position not in fine]
        with self._changed:
            self._counters.corrupt += len(damaged)
        for location in {id(read.location): read.location for read in damaged}.values():
            logger.warning(
                "nvme_extent_damaged region=%d ordinal=%d", location.region, location.ordinal
            )
            self._on_damaged(location)

    def _finish(self, batch: _Batch, num_reads: int, good: Sequence[Read]) -> None:
        with self._changed:
            for read in good:
                batch.results[read.position] = True
                self._counters.bytes_out += read.extent.length
            self._pending -= num_reads
            batch.spans_left -= 1
            is_last = batch.spans_left == 0
        if is_last:
            batch.done(batch.results)

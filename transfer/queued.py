"""Transports whose bytes are moved by threads of this process: copies and file I/O."""

from __future__ import annotations

import abc
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from .batches import DONE, Batch, Limits
from .errors import TransferError, UnknownSegment
from .registry import Access, check_span
from .transport import CLOSE_SECONDS, BatchTransport
from .types import SegmentAddress, SliceState, SliceStatus, TransferRequest

logger = logging.getLogger(__name__)

STEP_BYTES = 1 << 20
"""Moved between two looks at whether the batch is ending."""
Move = Callable[[int, int], None]
"""Moves bytes start..stop of a slice."""
SegmentT = TypeVar("SegmentT")


class QueuedTransport(BatchTransport, Generic[SegmentT]):
    """Between local memory and the segments attached here. Slices wait in one queue for `threads`
    threads, which start with the first of them. A slice that has begun becomes terminal at the end
    of a step: within it the memory is in use."""

    def __init__(self, name: str, limits: Limits, threads: int) -> None:
        super().__init__(name, limits)
        self._changed = threading.Condition()
        self._queue: deque[tuple[Batch, int]] = deque()
        self._closed = False
        self._attached: dict[SegmentAddress, SegmentT] = {}
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True)
            for number in range(threads)
        ]

    @abc.abstractmethod
    def _prepare(self, request: TransferRequest, segment: SegmentT) -> Move:
        """How to move the slice. Raises Refused."""

    def detach(self, address: SegmentAddress) -> None:
        """Requests find the segment no more; a slice under way keeps it. Unknown ones are left
        alone."""
        self._attached.pop(address, None)

    def _start(self, batch: Batch) -> None:
        count = len(batch.requests)
        with self._changed:
            ending = batch.ending
            if ending is None:
                self._queue.extend((batch, index) for index in range(count))
                self._start_threads()
                self._changed.notify(count)
        if ending is not None:
            for index in range(count):
                self._batches.settle(batch, index, ending)

    def _stop(self, batch: Batch, ending: SliceStatus) -> None:
        with self._changed:
            waiting = [index for queued, index in self._queue if queued is batch]
            if waiting:
                self._queue = deque(item for item in self._queue if item[0] is not batch)
        for index in waiting:
            self._batches.settle(batch, index, ending)

    def _shut(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        deadline = time.monotonic() + CLOSE_SECONDS
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(deadline - time.monotonic(), 0))

    def _start_threads(self) -> None:
        for thread in self._threads:
            if thread.ident is None:
                thread.start()

    def _run(self) -> None:
        while (item := self._next()) is not None:
            batch, index = item
            self._batches.settle(batch, index, self._carry_out(batch, index))

    def _next(self) -> tuple[Batch, int] | None:
        with self._changed:
            while not self._queue and not self._closed:
                self._changed.wait()
            return self._queue.popleft() if self._queue else None

    def _segment(self, address: SegmentAddress) -> SegmentT:
        segment = self._attached.get(address)
        if segment is None:
            raise UnknownSegment(f"segment {address.segment} of {address.instance} is not attached")
        return segment

    def _carry_out(self, batch: Batch, index: int) -> SliceStatus:
        request = batch.requests[index]
        num_bytes = request.local.nbytes
        try:
            move = self._prepare(request, self._segment(request.remote))
            for start in range(0, num_bytes, STEP_BYTES):
                if batch.ending is not None:
                    return batch.ending
                move(start, min(start + STEP_BYTES, num_bytes))
        except TransferError as error:
            return SliceStatus(SliceState.FAILED, error.reason)
        except Exception as error:  # thread boundary: no slice may stay pending
            logger.exception("transfer slice failed")
            return SliceStatus(SliceState.FAILED, f"internal: {error!r}")
        return DONE


def check_request(request: TransferRequest, segment_bytes: int, access: Access) -> None:
    """Raises OutOfRange, ReadOnly."""
    span = range(request.offset, request.offset + request.local.nbytes)
    check_span(request.opcode, request.remote.segment, span, segment_bytes, access)

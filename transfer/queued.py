"""Transports whose bytes are moved by threads of this process: copies and file I/O."""

from __future__ import annotations

import abc
import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from .batches import DONE, Batch, Limits
from .errors import OutOfRange, ReadOnly, TransferError
from .registry import Access
from .transport import CLOSE_SECONDS, BatchTransport
from .types import Opcode, SliceState, SliceStatus, TransferRequest

logger = logging.getLogger(__name__)

STEP_BYTES = 1 << 20
"""Moved between two looks at whether the batch is ending."""
Move = Callable[[int, int], None]
"""Moves bytes start..stop of a slice."""


class QueuedTransport(BatchTransport):
    """Slices wait in one queue for `threads` threads, which start with the first of them. A slice
    that has begun becomes terminal at the end of a step: within it the memory is in use."""

    def __init__(self, name: str, limits: Limits, threads: int) -> None:
        super().__init__(name, limits)
        self._changed = threading.Condition()
        self._queue: deque[tuple[Batch, int]] = deque()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True)
            for number in range(threads)
        ]

    @abc.abstractmethod
    def _prepare(self, request: TransferRequest) -> Move:
        """How to move the slice. Raises Refused."""

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

    def _carry_out(self, batch: Batch, index: int) -> SliceStatus:
        request = batch.requests[index]
        num_bytes = request.local.nbytes
        try:
            move = self._prepare(request)
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


def check_span(request: TransferRequest, num_bytes: int, access: Access) -> None:
    """Whether the request may have its span of a segment. Raises Refused."""
    stop = request.offset + request.local.nbytes
    segment = request.remote.segment
    if stop > num_bytes:
        raise OutOfRange(
            f"bytes {request.offset}..{stop} of segment {segment}, which has {num_bytes}"
        )
    if request.opcode is Opcode.WRITE and access is not Access.LANDING:
        raise ReadOnly(f"segment {segment} may not be written")

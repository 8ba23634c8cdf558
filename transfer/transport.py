"""The interface of every transport, and what all of ours do alike.

    submit ──► PENDING ──► DONE | FAILED(reason) | CANCELLED        one status a slice
                  │ deadline, cancel, close: ended, then terminal once its memory is let go

A slice is terminal only when its memory is surely no longer touched, and DONE only when the bytes
are there. A batch stays until `forget`.
"""

from __future__ import annotations

import abc
import threading
import time
from collections.abc import Sequence
from typing import Protocol

from .batches import Batch, Batches, Limits, Then
from .deadlines import Deadlines
from .errors import InvalidRequest
from .types import (
    BatchId,
    Opcode,
    Priority,
    SliceState,
    SliceStatus,
    TransferCounters,
    TransferRequest,
)

CLOSE_SECONDS = 5.0
_CANCELLED = SliceStatus(SliceState.CANCELLED)
_DEADLINE = SliceStatus(SliceState.FAILED, "deadline")
CLOSED = SliceStatus(SliceState.FAILED, "closed")


class Transport(Protocol):
    """One-sided transfers in batches. Callable from any thread; only `wait`, `transfer` and `close`
    wait."""

    def submit(
        self,
        requests: Sequence[TransferRequest],
        *,
        deadline: float,
        then: Then | None = None,
        priority: Priority = Priority.NORMAL,
    ) -> BatchId:
        """Takes all of the requests or none. `deadline` is of time.monotonic(). `then` is called
        once every slice is terminal, perhaps before this returns, by the thread that ended the
        last: it does not wait, what it raises is only logged, and nobody else is told or has to
        forget the batch.
        `priority` matters where batches wait for each other before they are begun.
        Raises InvalidRequest, Busy (a bound is reached: retry when a batch has ended), Unavailable
        (this transport is closed); whatever else goes wrong is a slice's status."""

    def poll(self, batch: BatchId) -> tuple[SliceStatus, ...]:
        """One status a request. Raises InvalidRequest for a batch that is unknown or forgotten."""

    def wait(self, batch: BatchId) -> tuple[SliceStatus, ...]:
        """Once every slice is terminal, which the deadline bounds. `finished` does not tell of the
        batch then. Raises InvalidRequest for a batch that is unknown, forgotten, or waited for."""

    def transfer(
        self,
        requests: Sequence[TransferRequest],
        *,
        deadline: float,
        priority: Priority = Priority.NORMAL,
    ) -> tuple[SliceStatus, ...]:
        """Submits, waits and forgets: the quickest way for who would wait, since this thread moves
        bytes itself where it can. Raises what `submit` raises; interrupted, it cancels, and when
        the memory is let go is not told."""

    def finished(self) -> list[BatchId]:
        """Batches of which every slice became terminal since the last call; each is told once."""

    def fileno(self) -> int:
        """Readable while `finished` has something to tell."""

    def cancel(self, batch: BatchId) -> None:
        """Ends what is pending as CANCELLED; unknown and finished batches are left alone."""

    def forget(self, batch: BatchId) -> None:
        """Cancels what is pending and drops the batch; unknown ones are left alone."""

    def counters(self) -> TransferCounters:
        """What was done and failed since the start."""

    def close(self) -> None:
        """Ends what is pending as FAILED "closed" and stops the threads. Idempotent."""


class BatchTransport(abc.ABC):
    """Submit, deadlines and bookkeeping; a subclass moves the bytes and settles the slices."""

    def __init__(self, name: str, limits: Limits) -> None:
        self._batches = Batches(limits)
        self._deadlines = Deadlines(self._end_due, name=f"{name}-deadlines")

    @abc.abstractmethod
    def _start(self, batch: Batch) -> None:
        """Queues the slices; settles those that cannot go, and all of them when `batch.ending` is
        set. Neither waits nor raises."""

    def _attend(self, batch: Batch) -> None:
        """As `_start`, by who waits until the batch has ended: may move bytes in this thread."""
        self._start(batch)

    @abc.abstractmethod
    def _stop(self, batch: Batch, ending: SliceStatus) -> None:
        """`batch.ending` was set: settles what nobody touches, tells the threads to let go of the
        rest. Neither waits nor raises."""

    @abc.abstractmethod
    def _shut(self) -> None:
        """Every batch was stopped: ends the threads, waiting at most CLOSE_SECONDS."""

    def submit(
        self,
        requests: Sequence[TransferRequest],
        *,
        deadline: float,
        then: Then | None = None,
        priority: Priority = Priority.NORMAL,
    ) -> BatchId:
        batch = self._open(requests, deadline, then, priority)
        self._start(batch)
        self._deadlines.arm(deadline)
        return batch.id

    def poll(self, batch: BatchId) -> tuple[SliceStatus, ...]:
        return self._batches.poll(batch)

    def wait(self, batch: BatchId) -> tuple[SliceStatus, ...]:
        return self._batches.wait(batch)

    def transfer(
        self,
        requests: Sequence[TransferRequest],
        *,
        deadline: float,
        priority: Priority = Priority.NORMAL,
    ) -> tuple[SliceStatus, ...]:
        ended = threading.Lock()
        ended.acquire()
        batch = self._open(requests, deadline, lambda _: ended.release(), priority)
        self._deadlines.arm(deadline)
        try:
            self._attend(batch)
            ended.acquire()
        except BaseException:
            self._end(batch, _CANCELLED)
            raise
        return tuple(batch.statuses)

    def finished(self) -> list[BatchId]:
        return self._batches.finished()

    def fileno(self) -> int:
        return self._batches.fileno()

    def cancel(self, batch: BatchId) -> None:
        found = self._batches.find(batch)
        if found is not None:
            self._end(found, _CANCELLED)

    def forget(self, batch: BatchId) -> None:
        found = self._batches.forget(batch)
        if found is not None:
            self._end(found, _CANCELLED)

    def counters(self) -> TransferCounters:
        return self._batches.counters()

    def close(self) -> None:
        for batch in self._batches.close():
            self._end(batch, CLOSED)
        self._deadlines.close()
        self._shut()
        self._batches.release()

    def _open(
        self,
        requests: Sequence[TransferRequest],
        deadline: float,
        then: Then | None,
        priority: Priority,
    ) -> Batch:
        for request in requests:
            _check(request)
        batch = self._batches.open(requests, deadline, then=then, priority=priority)
        if deadline <= time.monotonic():
            self._batches.end(batch, _DEADLINE)
        return batch

    def _end(self, batch: Batch, status: SliceStatus) -> None:
        if self._batches.end(batch, status):
            self._stop(batch, status)

    def _end_due(self, now: float) -> float | None:
        """Ends the batches whose deadline has passed; the next deadline, if any."""
        due, following = self._batches.due(now)
        for batch in due:
            self._end(batch, _DEADLINE)
        return following


def _check(request: TransferRequest) -> None:
    local = request.local
    if local.format != "B" or local.ndim != 1 or not local.c_contiguous or not local.nbytes:
        raise InvalidRequest(
            f"local memory of {local.nbytes} bytes, format {local.format!r}, {local.ndim} "
            'dimensions; give at least one contiguous byte: view.cast("B")'
        )
    if request.opcode is Opcode.READ and local.readonly:
        raise InvalidRequest("a READ into read-only memory; give a writable view")
    if not 0 <= request.offset < 1 << 62 or not 0 <= request.remote.segment < 1 << 32:
        raise InvalidRequest(
            f"segment {request.remote.segment}, offset {request.offset}; "
            f"segments are 0..{2**32 - 1}, offsets 0..{2**62 - 1}"
        )

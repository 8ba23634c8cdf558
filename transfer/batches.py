"""Which slice of which batch has which status; who is told; what is in flight."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from .errors import Busy, InvalidRequest, Unavailable
from .types import (
    BatchId,
    Opcode,
    Priority,
    SliceState,
    SliceStatus,
    TransferCounters,
    TransferRequest,
)

logger = logging.getLogger(__name__)

_PENDING = SliceStatus(SliceState.PENDING)
DONE = SliceStatus(SliceState.DONE)
Then = Callable[[tuple[SliceStatus, ...]], None]
"""Called with the statuses of a batch once all are terminal."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one transport, all batches together."""

    max_bytes: int = 256 << 20
    max_slices: int = 1 << 16
    max_batches: int = 4096  # finished ones count until they are forgotten


@dataclass(slots=True, eq=False)
class Batch:
    """One submitted list. `ending` is set once, by cancel, deadline or close; threads that move
    bytes read it between two steps and then let go."""

    id: BatchId
    requests: tuple[TransferRequest, ...]
    deadline: float
    statuses: list[SliceStatus]
    parts: list[int]  # settlements of each slice that are still to come
    pending: int  # slices
    ending: SliceStatus | None = None
    then: Then | None = None  # told instead of `finished`
    priority: Priority = Priority.NORMAL
    forgotten: bool = False

    @classmethod
    def of(cls, batch_id: BatchId, requests: Sequence[TransferRequest], deadline: float) -> Batch:
        count = len(requests)
        return cls(batch_id, tuple(requests), deadline, [_PENDING] * count, [1] * count, count)


class Batches:
    """Thread-safe. Counts slices and bytes until they are terminal."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._batches: dict[BatchId, Batch] = {}
        self._finished: list[BatchId] = []
        self._last_id = 0
        self._slices = 0
        self._bytes = 0
        self._counters = {Opcode.READ: 0, Opcode.WRITE: 0}
        self._slices_done = 0
        self._slices_failed = 0
        self._unknown_notices = 0
        self._closed = False
        self._notice = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def open(
        self,
        requests: Sequence[TransferRequest],
        deadline: float,
        *,
        then: Then | None = None,
        priority: Priority = Priority.NORMAL,
    ) -> Batch:
        """With `then` the batch is forgotten by itself. Raises InvalidRequest, Busy, Unavailable
        (closed)."""
        num_bytes = sum(request.local.nbytes for request in requests)
        limits = self._limits
        if not requests or len(requests) > limits.max_slices or num_bytes > limits.max_bytes:
            raise InvalidRequest(
                f"a batch of {len(requests)} slices, {num_bytes} bytes; at most "
                f"{limits.max_slices} slices, {limits.max_bytes} bytes, and one slice at least"
            )
        with self._lock:
            if self._closed:
                raise Unavailable("this transport is closed")
            if (
                self._slices + len(requests) > limits.max_slices
                or self._bytes + num_bytes > limits.max_bytes
                or len(self._batches) >= limits.max_batches
            ):
                raise Busy(
                    f"{self._slices} slices, {self._bytes} bytes in flight, {len(self._batches)} "
                    f"batches not forgotten; at most {limits.max_slices}, {limits.max_bytes}, "
                    f"{limits.max_batches}: retry when one has ended"
                )
            self._last_id += 1
            batch = Batch.of(BatchId(self._last_id), requests, deadline)
            batch.then, batch.forgotten, batch.priority = then, then is not None, priority
            self._batches[batch.id] = batch
            self._slices += len(requests)
            self._bytes += num_bytes
        return batch

    def split(self, batch: Batch, index: int, parts: int) -> None:
        """The slice goes as `parts` pieces, each settled once. Before any of them is."""
        batch.parts[index] = parts

    def settle(self, batch: Batch, index: int, status: SliceStatus) -> None:
        """One piece of the slice has ended and its memory is let go. The slice is terminal with
        its last piece, and DONE only when all were."""
        self.settle_all(batch, (index,), (status,))

    def settle_all(
        self, batch: Batch, indices: Sequence[int], statuses: Iterable[SliceStatus]
    ) -> None:
        """As `settle`, for one piece of each of some slices."""
        with self._lock:
            for index, status in zip(indices, statuses, strict=True):
                assert batch.parts[index] > 0, "a slice is settled once"
                if status.state is not SliceState.DONE and batch.statuses[index] is _PENDING:
                    batch.statuses[index] = status
                batch.parts[index] -= 1
                if batch.parts[index] == 0:
                    self._slice_ended(batch, index)
            then = batch.then if not batch.pending else None
        if then is not None:
            _tell(then, tuple(batch.statuses))

    def end(self, batch: Batch, status: SliceStatus) -> bool:
        """False when it had ended, or was ending, before."""
        with self._lock:
            if batch.ending is not None or not batch.pending:
                return False
            batch.ending = status
            return True

    def find(self, batch_id: BatchId) -> Batch | None:
        return self._batches.get(batch_id)

    def poll(self, batch_id: BatchId) -> tuple[SliceStatus, ...]:
        with self._lock:
            batch = self._batches.get(batch_id)
            if batch is None or batch.forgotten:
                raise InvalidRequest(f"batch {batch_id} is unknown or forgotten")
            return tuple(
                status if not parts else _PENDING
                for status, parts in zip(batch.statuses, batch.parts, strict=True)
            )

    def forget(self, batch_id: BatchId) -> Batch | None:
        """The batch when slices of it are pending still: it is dropped with the last of them."""
        with self._lock:
            batch = self._batches.get(batch_id)
            if batch is None or batch.forgotten:
                return None
            batch.forgotten = True
            if batch.pending:
                return batch
            del self._batches[batch_id]
            return None

    def wait(self, batch_id: BatchId) -> tuple[SliceStatus, ...]:
        """Once every slice is terminal."""
        waiter = self._waiter_of(batch_id)
        if waiter is not None:
            waiter.acquire()
        return self.poll(batch_id)

    def _waiter_of(self, batch_id: BatchId) -> threading.Lock | None:
        """What to acquire; None: the batch has ended. It is told to nobody else."""
        with self._lock:
            batch = self._batches.get(batch_id)
            if batch is None or batch.then is not None:
                raise InvalidRequest(f"batch {batch_id} is unknown, or another waits for it")
            if batch.pending:
                waiter = threading.Lock()
                waiter.acquire()
                batch.then = lambda _: waiter.release()
                return waiter
            if batch_id in self._finished:
                self._finished.remove(batch_id)
                if not self._finished:
                    self._clear_notice()
            return None

    def finished(self) -> list[BatchId]:
        with self._lock:
            if self._finished:
                self._clear_notice()
            finished, self._finished = self._finished, []
            return [batch_id for batch_id in finished if batch_id in self._batches]

    def _clear_notice(self) -> None:
        if self._notice >= 0:
            os.eventfd_read(self._notice)

    def fileno(self) -> int:
        return self._notice

    def due(self, now: float) -> tuple[list[Batch], float | None]:
        """Batches past their deadline that nobody has ended; the earliest deadline after `now`."""
        with self._lock:
            live = [b for b in self._batches.values() if b.pending and b.ending is None]
        due = [batch for batch in live if batch.deadline <= now]
        later = [batch.deadline for batch in live if batch.deadline > now]
        return due, min(later, default=None)

    def counters(self) -> TransferCounters:
        with self._lock:
            return TransferCounters(
                self._counters[Opcode.READ],
                self._counters[Opcode.WRITE],
                self._slices_done,
                self._slices_failed,
                self._unknown_notices,
            )

    def count_unknown_notice(self) -> None:
        with self._lock:
            self._unknown_notices += 1

    def close(self) -> list[Batch]:
        """No batch is taken from now on; those with pending slices."""
        with self._lock:
            self._closed = True
            return [batch for batch in self._batches.values() if batch.pending]

    def release(self) -> None:
        """After `close`, when nobody waits on `fileno` any more. Idempotent."""
        with self._lock:
            if self._notice >= 0:
                os.close(self._notice)
            self._notice = -1

    def _slice_ended(self, batch: Batch, index: int) -> None:
        request = batch.requests[index]
        self._slices -= 1
        self._bytes -= request.local.nbytes
        if batch.statuses[index] is _PENDING:
            batch.statuses[index] = DONE
            self._counters[request.opcode] += request.local.nbytes
            self._slices_done += 1
        else:
            self._slices_failed += 1
        batch.pending -= 1
        if batch.pending:
            return
        batch.requests = ()  # the views go with the transfer
        if batch.forgotten:
            del self._batches[batch.id]
        elif batch.then is None:
            self._finished.append(batch.id)
            if len(self._finished) == 1 and self._notice >= 0:
                os.eventfd_write(self._notice, 1)


def _tell(then: Then, statuses: tuple[SliceStatus, ...]) -> None:
    try:
        then(statuses)
    except Exception:  # a stranger's code in a thread that others need: they go on
        logger.exception("transfer callback failed")

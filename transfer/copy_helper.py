"""A second thread that copies beside the caller's: one core alone does not use all the bandwidth
that memory has.

A batch is shared value by value. Of one large value both threads copy pieces, and the caller sums
them in order while they are still in cache. Where other processes want the cores, two threads wait
for each other to be scheduled and for the interpreter's lock: then the caller copies alone.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable

from xxhash import xxh3_64

from .copying import CHUNK_BYTES, Bytes, copy, copy_and_checksum, flat_pair

logger = logging.getLogger(__name__)

LEAST_VALUE_BYTES = 4 << 20
"""Of one value for two threads: waking the other costs some 50 µs."""
LEAST_BATCH_BYTES = 8 << 20
PIECE_BYTES = 2 << 20
"""Of one value. Smaller ones pass the interpreter's lock to and fro more often."""


def cores_are_free() -> bool:
    """True when fewer threads than cores have wanted to run of late."""
    return os.getloadavg()[0] < len(os.sched_getaffinity(0))


class CopyHelper:
    """Thread-safe. The thread starts with the first work for it and serves one caller at a time;
    meanwhile others copy alone, as everybody does after `close`."""

    def __init__(self, is_worthwhile: Callable[[], bool] = cores_are_free) -> None:
        """`is_worthwhile` is asked before each use."""
        self._is_worthwhile = is_worthwhile
        self._busy = threading.Lock()
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    def share(self, act: Callable[[int], None], count: int, num_bytes: int) -> None:
        """Calls `act(index)` for every index below `count`, on two threads when `num_bytes` are
        many. Raises what `act` raised first, once no call runs any more."""
        if count < 2 or num_bytes < LEAST_BATCH_BYTES or not self._take():
            for index in range(count):
                act(index)
            return
        shared = _SharedBatch(act, count)
        try:
            self._run_beside(shared.run, shared.run)
        finally:
            self._busy.release()
        if shared.error is not None:
            raise shared.error

    def copy(self, destination: memoryview, source: Bytes) -> None:
        """As `transfer.copy`."""
        if len(destination) < LEAST_VALUE_BYTES or not self._take():
            copy(destination, source)
            return
        try:
            value = _SplitValue(destination, source)
            self._run_beside(value.copy, value.copy)
            value.copy_missing()
        finally:
            self._busy.release()

    def copy_and_checksum(self, destination: memoryview, source: Bytes) -> int:
        """As `transfer.copy_and_checksum`."""
        if len(destination) < LEAST_VALUE_BYTES or not self._take():
            return copy_and_checksum(destination, source)
        try:
            value = _SplitValue(destination, source)
            self._run_beside(value.copy_and_sum, value.copy)
            return value.finish()
        finally:
            self._busy.release()

    def close(self) -> None:
        """Returns when the work under way has ended. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._busy.acquire()  # for good: who comes later copies alone
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()

    def after_fork(self) -> None:
        """In the child, which has no such thread."""
        self._busy, self._thread = threading.Lock(), None

    def _take(self) -> bool:
        """Whether the other thread works for this caller now, who then releases `_busy`."""
        return self._is_worthwhile() and self._busy.acquire(blocking=False)

    def _run_beside(self, mine: Callable[[], None], theirs: Callable[[], None]) -> None:
        """Both, at the same time; returns when neither runs any more."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="moontide-help", daemon=True)
            self._thread.start()
        work = _Work(theirs)
        self._work.put(work)
        try:
            mine()
        finally:
            work.ended.acquire()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work.act()
            except Exception:  # the boundary of one piece of work, which its caller can do alone
                logger.exception("copy beside a caller failed")
            work.ended.release()


class _Work:
    __slots__ = ("act", "ended")

    def __init__(self, act: Callable[[], None]) -> None:
        self.act = act
        self.ended = threading.Semaphore(0)


class _SharedBatch:
    """Indices that two threads take one by one."""

    def __init__(self, act: Callable[[int], None], count: int) -> None:
        self._act = act
        self._indices = iter(range(count))
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            for index in self._indices:
                if self.error is not None:
                    return
                self._act(index)
        except BaseException as error:  # noqa: BLE001  # raised again by the caller
            self.error = self.error or error


class _SplitValue:
    """Pieces of one value that two threads take one by one."""

    def __init__(self, destination: memoryview, source: Bytes) -> None:
        self._target, self._origin = flat_pair(destination, source)
        self._num_pieces = -(-len(self._target) // PIECE_BYTES)
        self._indices = iter(range(self._num_pieces))
        self._copied = bytearray(self._num_pieces)
        self._hasher = xxh3_64()
        self._num_summed = 0

    def copy(self) -> None:
        for index in self._indices:
            self._copy(index)

    def copy_and_sum(self) -> None:
        """Ends when every piece is taken."""
        while self._num_summed < self._num_pieces:
            if self._copied[self._num_summed]:
                self._sum_next()
                continue
            index = next(self._indices, None)
            if index is None:
                return
            if index == self._num_summed:
                self._copy_and_sum_next()
            else:
                self._copy(index)

    def finish(self) -> int:
        """Sums what the other thread has copied last; the xxh3-64 of the whole."""
        self.copy_missing()
        while self._num_summed < self._num_pieces:
            self._sum_next()
        return self._hasher.intdigest()

    def copy_missing(self) -> None:
        """Pieces that a thread took and failed to copy."""
        for index, copied in enumerate(self._copied):
            if not copied:
                self._copy(index)

    def _copy(self, index: int) -> None:
        piece = slice(index * PIECE_BYTES, (index + 1) * PIECE_BYTES)
        copy(self._target[piece], self._origin[piece])
        self._copied[index] = 1

    def _copy_and_sum_next(self) -> None:
        start = self._num_summed * PIECE_BYTES
        for begin in range(start, min(start + PIECE_BYTES, len(self._target)), CHUNK_BYTES):
            chunk = slice(begin, min(begin + CHUNK_BYTES, start + PIECE_BYTES))
            copy(self._target[chunk], self._origin[chunk])
            self._hasher.update(self._target[chunk])
        self._copied[self._num_summed] = 1
        self._num_summed += 1

    def _sum_next(self) -> None:
        start = self._num_summed * PIECE_BYTES
        self._hasher.update(self._target[start : start + PIECE_BYTES])
        self._num_summed += 1

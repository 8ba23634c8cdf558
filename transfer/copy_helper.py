"""A second thread that copies beside the caller's: one core alone does not use all the bandwidth
that memory has.

A batch is shared value by value. Of one large value both threads copy chunks, and the caller sums
them in order while they are still in cache.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from xxhash import xxh3_64

from .copying import Bytes, copy, copy_and_checksum, flat_pair

logger = logging.getLogger(__name__)

LEAST_VALUE_BYTES = 4 << 20
"""Of one value for two threads: waking the other costs some 50 µs."""
LEAST_BATCH_BYTES = 8 << 20
SPLIT_BYTES = 1 << 20


class CopyHelper:
    """Thread-safe. The thread starts with the first work for it and serves one caller at a time;
    meanwhile others copy alone, as everybody does after `close`."""

    def __init__(self) -> None:
        self._busy = threading.Lock()
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    def share(self, act: Callable[[int], None], count: int, num_bytes: int) -> None:
        """Calls `act(index)` for every index below `count`, on two threads when `num_bytes` are
        many. Raises what `act` raised first, once no call runs any more."""
        if count < 2 or num_bytes < LEAST_BATCH_BYTES or not self._busy.acquire(blocking=False):
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
        if len(destination) < LEAST_VALUE_BYTES or not self._busy.acquire(blocking=False):
            copy(destination, source)
            return
        try:
            value = _SplitValue(destination, source)
            self._run_beside(value.copy, value.copy)
        finally:
            self._busy.release()

    def copy_and_checksum(self, destination: memoryview, source: Bytes) -> int:
        """As `transfer.copy_and_checksum`."""
        if len(destination) < LEAST_VALUE_BYTES or not self._busy.acquire(blocking=False):
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
    """Chunks of one value that two threads take one by one."""

    def __init__(self, destination: memoryview, source: Bytes) -> None:
        self._target, self._origin = flat_pair(destination, source)
        self._num_chunks = -(-len(self._target) // SPLIT_BYTES)
        self._indices = iter(range(self._num_chunks))
        self._copied = bytearray(self._num_chunks)
        self._hasher = xxh3_64()
        self._num_summed = 0

    def copy(self) -> None:
        for index in self._indices:
            self._copy(index)

    def copy_and_sum(self) -> None:
        """Ends when every chunk is taken."""
        while self._num_summed < self._num_chunks:
            if self._copied[self._num_summed]:
                self._sum_next()
                continue
            index = next(self._indices, None)
            if index is None:
                return
            self._copy(index)

    def finish(self) -> int:
        """Sums what the other thread has copied last; the xxh3-64 of the whole."""
        while self._num_summed < self._num_chunks:
            if not self._copied[self._num_summed]:
                self._copy(self._num_summed)
            self._sum_next()
        return self._hasher.intdigest()

    def _copy(self, index: int) -> None:
        chunk = slice(index * SPLIT_BYTES, (index + 1) * SPLIT_BYTES)
        copy(self._target[chunk], self._origin[chunk])
        self._copied[index] = 1

    def _sum_next(self) -> None:
        start = self._num_summed * SPLIT_BYTES
        self._hasher.update(self._target[start : start + SPLIT_BYTES])
        self._num_summed += 1

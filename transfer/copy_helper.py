"""A second thread that copies a batch beside the caller, value by value: one core alone may not
use all the bandwidth that memory has.

Where other threads want the cores, two wait for each other to be scheduled and for the
interpreter's lock: then the caller copies alone.
"""

from __future__ import annotations

import logging
import os
import queue
import re
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)

LEAST_BATCH_BYTES = 4 << 20
"""Waking the other costs some 50 µs."""
_RUNNING = re.compile(rb"\S+ \S+ \S+ (\d+)/")
"""In /proc/loadavg: how many threads run or want to, this one among them."""


def cores_are_free() -> bool:
    """True when a core has nothing to do at this moment. Costs some 20 µs."""
    if len(os.sched_getaffinity(0)) < 2:
        return False
    with open("/proc/loadavg", "rb", buffering=0) as file:
        found = _RUNNING.match(file.read(64))
    return found is not None and int(found[1]) < (os.cpu_count() or 1)


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

"""What `threading`, `queue` and `concurrent.futures` give, on a scheduler's threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent import futures
from types import TracebackType
from typing import Any, Generic, TypeVar

from .scheduler import Scheduler
from .scheduler import Thread as Line

T = TypeVar("T")


class Waiters:
    """Threads that wait for one thing."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._waiting: dict[Line, None] = {}

    def wait(self, seconds: float | None = None) -> bool:
        me = self._scheduler.current
        self._waiting[me] = None
        try:
            return self._scheduler.wait(seconds)
        finally:
            self._waiting.pop(me, None)

    def add(self, thread: Line) -> None:
        self._waiting[thread] = None

    def discard(self, thread: Line) -> None:
        self._waiting.pop(thread, None)

    def wake(self, count: int | None = None) -> None:
        for thread in list(self._waiting)[:count]:
            del self._waiting[thread]
            self._scheduler.make_ready(thread)


class Lock:
    """Of `threading`."""

    reentrant = False

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._waiters = Waiters(scheduler)
        self._holder: Line | None = None
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = self._scheduler.current
        if self._holder is me and self.reentrant:
            self._depth += 1
            return True
        ends_at = self._scheduler.now + timeout if blocking and timeout >= 0 else None
        while self._holder is not None:
            if not blocking or (ends_at is not None and self._scheduler.now >= ends_at):
                return False
            self._waiters.wait(None if ends_at is None else ends_at - self._scheduler.now)
        self._holder, self._depth = me, 1
        return True

    def release(self) -> None:
        if self._scheduler.is_over:
            return
        if self._holder is None:
            raise RuntimeError("release unlocked lock")
        self._depth -= 1
        if not self._depth:
            self._holder = None
            self._waiters.wake(1)

    def locked(self) -> bool:
        return self._holder is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


class RLock(Lock):
    reentrant = True


class Condition:
    def __init__(self, scheduler: Scheduler, lock: Lock | None = None) -> None:
        self._lock = lock or RLock(scheduler)
        self._scheduler = scheduler
        self._waiters = Waiters(scheduler)
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *exception: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        self._lock.release()
        try:
            return self._waiters.wait(timeout)
        finally:
            if not self._scheduler.is_over:
                self._lock.acquire()

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        ends_at = None if timeout is None else self._scheduler.now + timeout
        while not predicate():
            left = None if ends_at is None else ends_at - self._scheduler.now
            if left is not None and left <= 0:
                break
            self.wait(left)
        return predicate()

    def notify(self, n: int = 1) -> None:
        self._waiters.wake(n)

    def notify_all(self) -> None:
        self._waiters.wake()


class Event:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._waiters = Waiters(scheduler)
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._waiters.wake()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        ends_at = None if timeout is None else self._scheduler.now + timeout
        while not self._is_set:
            left = None if ends_at is None else ends_at - self._scheduler.now
            if left is not None and left <= 0:
                break
            self._waiters.wait(left)
        return self._is_set


class Thread:
    """Belongs to the process whose thread starts it."""

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        target: Callable[..., object],
        name: str = "thread",
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        daemon: bool | None = None,
    ) -> None:
        self.name = name
        self.daemon = daemon
        self.ident: int | None = None
        self._scheduler = scheduler
        self._run = lambda: target(*args, **(kwargs or {}))
        self._line: Line | None = None

    def start(self) -> None:
        process = self._scheduler.current.process
        self._line = self._scheduler.start(process, self.name, lambda: _void(self._run()))
        self.ident = self._line.number

    def join(self, timeout: float | None = None) -> None:
        if self._line is None:
            raise RuntimeError("cannot join thread before it is started")
        self._scheduler.join(self._line, timeout)

    def is_alive(self) -> bool:
        return self._line is not None and not self._line.is_finished


class SimpleQueue(Generic[T]):
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._waiters = Waiters(scheduler)
        self._items: deque[T] = deque()

    def put(self, item: T) -> None:
        self._items.append(item)
        self._waiters.wake(1)

    def get(self) -> T:
        while not self._items:
            self._waiters.wait()
        return self._items.popleft()


class Executor(futures.Executor):
    """As many threads as there is work, up to `max_workers`."""

    def __init__(
        self, scheduler: Scheduler, max_workers: int = 8, thread_name_prefix: str = "worker"
    ) -> None:
        self._scheduler = scheduler
        self._max_workers = max_workers
        self._name = thread_name_prefix
        self._waiting: deque[tuple[futures.Future[Any], Callable[[], Any]]] = deque()
        self._lines: list[Line] = []
        self._is_shut = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> futures.Future[T]:
        if self._is_shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: futures.Future[T] = futures.Future()
        self._waiting.append((future, lambda: fn(*args, **kwargs)))
        self._lines = [line for line in self._lines if not line.is_finished]
        if len(self._lines) < self._max_workers:
            process = self._scheduler.current.process
            self._lines.append(self._scheduler.start(process, self._name, self._work))
        return future

    def _work(self) -> None:
        while self._waiting:
            future, call = self._waiting.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = call()
            except Exception as error:  # noqa: BLE001  # the future's reader gets it
                future.set_exception(error)
            else:
                future.set_result(result)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._is_shut = True
        if cancel_futures:
            for future, _ in self._waiting:
                future.cancel()
        for line in self._lines if wait else ():
            self._scheduler.join(line)


def _void(result: object) -> None:
    """What a thread returns is nobody's."""

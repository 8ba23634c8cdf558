"""Decorators between the engine and a real store client that delay, refuse or lose calls."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from moontide.engine_adapters.builtin.engine.kv_jobs import KvJobs
from moontide.kvstore import JobId, JobResult, JobStatus
from moontide.kvstore.errors import StoreUnavailable


class Tap:
    """Passes every call on and counts it."""

    def __init__(self, kv: KvJobs) -> None:
        self._kv = kv
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        passed_on: Callable[..., Any] = getattr(self._kv, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            number = self.calls[name]
            self.calls[name] += 1
            return self.around(name, number, lambda: passed_on(*args, **kwargs))

        return call

    def around(self, name: str, number: int, call: Callable[[], Any]) -> Any:
        return call()


class Refusing(Tap):
    """Raises `error` from call `number` of `name`; None: from every one, "*": of every name."""

    def __init__(self, kv: KvJobs, name: str, number: int | None, error: Exception) -> None:
        super().__init__(kv)
        self.name, self.number, self.error = name, number, error

    def around(self, name: str, number: int, call: Callable[[], Any]) -> Any:
        if self.name in (name, "*") and self.number in (number, None):
            raise self.error
        return call()


class Altering(Tap):
    """Changes the result of job `number` of `name`; `change` may return None to lose it."""

    def __init__(
        self,
        kv: KvJobs,
        name: str,
        number: int | None,
        change: Callable[[JobResult], JobResult | None],
    ) -> None:
        super().__init__(kv)
        self.name, self.number, self.change = name, number, change
        self.chosen: set[JobId] = set()

    def around(self, name: str, number: int, call: Callable[[], Any]) -> Any:
        value = call()
        if name == self.name and self.number in (number, None):
            self.chosen.add(value)
        if name == "poll":
            value = [self.change(r) if r.job in self.chosen else r for r in value]
            value = [result for result in value if result is not None]
        return value


def _wake_and_close(eventfd: int) -> None:
    os.eventfd_write(eventfd, 1)
    os.close(eventfd)


class Delaying(Altering):
    """Gives the chosen results `seconds` late."""

    def __init__(self, kv: KvJobs, name: str, number: int | None, seconds: float) -> None:
        super().__init__(kv, name, number, self._hold)
        self.seconds = seconds
        self.held: list[tuple[float, JobResult]] = []

    def _hold(self, result: JobResult) -> None:
        """The results wake the engine like any other. The store may be closed by then, so the
        descriptor is one of our own."""
        self.held.append((time.monotonic() + self.seconds, result))
        waker = threading.Timer(self.seconds, _wake_and_close, (os.dup(self._kv.fileno()),))
        waker.daemon = True
        waker.start()

    def around(self, name: str, number: int, call: Callable[[], Any]) -> Any:
        value = super().around(name, number, call)
        if name == "poll":
            now = time.monotonic()
            value += [result for due, result in self.held if due <= now]
            self.held = [(due, result) for due, result in self.held if due > now]
        return value


class Holding(Altering):
    """Keeps the chosen results back until `let_go`."""

    def __init__(self, kv: KvJobs, name: str, number: int | None = None) -> None:
        super().__init__(kv, name, number, self._hold)
        self.held: list[JobResult] = []
        self.released = False

    def let_go(self) -> None:
        self.released = True
        os.eventfd_write(self._kv.fileno(), 1)

    def _hold(self, result: JobResult) -> JobResult | None:
        if self.released:
            return result
        self.held.append(result)
        return None

    def around(self, name: str, number: int, call: Callable[[], Any]) -> Any:
        value = super().around(name, number, call)
        if name == "poll" and self.released:
            value += self.held
            self.held = []
        return value


def fail_block(block: int) -> Callable[[JobResult], JobResult]:
    """As when the store dropped that block meanwhile."""
    return lambda result: replace(result, status=JobStatus.FAILED, failed_blocks=(block,))


def time_out(result: JobResult) -> JobResult:
    return replace(result, status=JobStatus.TIMED_OUT)


def lose(result: JobResult) -> None:
    return None


AWAY = StoreUnavailable("no store")

"""Waiting for what happens elsewhere, with a bound: no test depends on how long something takes."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self

POLL_SECONDS = 0.01
TICK_SECONDS = 0.005


class _Tick(NamedTuple):
    at: float
    late_seconds: float  # until then, in all


class Lateness:
    """How long this machine kept a thread waiting that wanted to run, while `with` it: what a
    deadline is missed by for no fault of whose it is. Moments are those of `time.monotonic`, which
    all processes share."""

    def __init__(self) -> None:
        self._ticks = [_Tick(time.monotonic(), 0.0)]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tick)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def seconds(self) -> float:
        return self._ticks[-1].late_seconds

    def between(self, begin: float, end: float) -> float:
        """Of the ticks that lie there, in part or as a whole."""
        first = max(bisect_right(self._ticks, begin, key=_moment) - 1, 0)
        last = min(bisect_left(self._ticks, end, key=_moment), len(self._ticks) - 1)
        return self._ticks[last].late_seconds - self._ticks[first].late_seconds

    def _tick(self) -> None:
        while not self._over.is_set():
            begun = time.monotonic()
            self._over.wait(TICK_SECONDS)
            now = time.monotonic()
            late = max(0.0, now - begun - TICK_SECONDS)
            self._ticks.append(_Tick(now, self.seconds + late))


def _moment(tick: _Tick) -> float:
    return tick.at


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """AssertionError where the block takes longer. What the machine keeps us from running does not
    count."""
    with Lateness() as machine:
        began = time.monotonic()
        yield
        taken = time.monotonic() - began
    late = machine.seconds
    assert taken - late < seconds, f"it took {taken:.3f} s; the machine was {late:.3f} s late"


def wait_until(
    condition: Callable[[], object],
    seconds: float = 10.0,
    told: Callable[[], object] | None = None,
) -> None:
    """Polls until it holds. AssertionError when it does not within `seconds`, with what `told`
    says then. What the machine keeps us from running does not count."""
    deadline = time.monotonic() + seconds
    while not condition():
        now = time.monotonic()
        assert now < deadline, told() if told else f"{condition}: not in {seconds} s"
        time.sleep(POLL_SECONDS)
        deadline += time.monotonic() - now - POLL_SECONDS


async def until(condition: Callable[[], Any], what: str = "", seconds: float = 15.0) -> None:
    """As `wait_until`, for one event loop. The condition may be a coroutine function."""
    deadline = time.monotonic() + seconds
    while True:
        result = condition()
        if inspect.isawaitable(result):
            result = await result
        if result:
            return
        now = time.monotonic()
        assert now < deadline, f"not within {seconds} s: {what or condition}"
        await asyncio.sleep(POLL_SECONDS)
        deadline += time.monotonic() - now - POLL_SECONDS

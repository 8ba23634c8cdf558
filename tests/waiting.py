"""Waiting for what happens elsewhere, with a bound: no test depends on how long something takes."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable
from typing import Any, Self

POLL_SECONDS = 0.01
TICK_SECONDS = 0.005


class Lateness:
    """`seconds` that this machine kept a thread waiting which wanted to run, while `with` it: what
    a deadline is missed by for no fault of whose it is."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tick)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _tick(self) -> None:
        while not self._over.is_set():
            begun = time.monotonic()
            self._over.wait(TICK_SECONDS)
            self.seconds += max(0.0, time.monotonic() - begun - TICK_SECONDS)


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
        assert time.monotonic() < deadline, f"not within {seconds} s: {what or condition}"
        await asyncio.sleep(POLL_SECONDS)

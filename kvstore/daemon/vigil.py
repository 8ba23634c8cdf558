"""The loop stays awake for a moment after a request, when requests have followed closely."""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import Callable

from ..polling import Polling
from .turns import Turns

LOOK_SECONDS = 0.001
"""Before all else the loop has to do gets a pass."""
READY_AT_ONCE = 16


class Vigil:
    """Looks for requests at the connections that are watched for as long as `polling`
    says."""

    def __init__(self, loop: asyncio.AbstractEventLoop, turns: Turns, polling: Polling) -> None:
        self._loop = loop
        self._turns = turns
        self._polling = polling
        self._sockets = select.epoll()
        self._steps: dict[int, Callable[[], None]] = {}
        self._until = 0.0
        self._look_due = False

    def watch(self, descriptor: int, on_readable: Callable[[], None]) -> None:
        self._steps[descriptor] = on_readable
        self._sockets.register(descriptor, select.EPOLLIN)

    def unwatch(self, descriptor: int) -> None:
        del self._steps[descriptor]
        self._sockets.unregister(descriptor)

    def close(self) -> None:
        self._until = 0.0
        self._sockets.close()

    def served(self, idle_seconds: float) -> float:
        """A client was answered just now, and had been idle for so long before it asked: if that
        was short, its next request is looked for. Returns the time."""
        now = time.monotonic()
        if self._polling.is_worthwhile(idle_seconds, now):
            self._until = now + self._polling.seconds
            if not self._look_due:
                self._look_due = True
                self._loop.call_soon(self._look)
        return now

    def _look(self) -> None:
        end = time.monotonic() + LOOK_SECONDS
        while time.monotonic() < min(self._until, end) and not self._turns.are_due:
            ready = self._sockets.poll(0, READY_AT_ONCE)
            for descriptor, _ in ready:
                if step := self._steps.get(descriptor):
                    step()
            if not ready and not self._polling.let_others_run():
                self._until = 0.0
        self._look_due = time.monotonic() < self._until
        if self._look_due:
            self._loop.call_soon(self._look)

"""Answers of one connection that come later."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from .. import wire
from ..errors import Busy, StoreError
from .answers import Deferred, Outgoing, Respond
from .budget import Budget

MAX_WAITS = 4096
WAIT_BYTES = 1024
"""What a wait takes beside its request."""
LEAST_TIMER_SECONDS = 0.001
"""The loop rounds to that."""


@dataclass(slots=True)
class _Wait:
    num_bytes: int
    end: Callable[[], None]
    cancel: Callable[[], None] | None = None
    timer: asyncio.TimerHandle | None = None


class Waits:
    """At most MAX_WAITS. What each keeps is counted in `memory`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, memory: Budget) -> None:
        self._loop = loop
        self._memory = memory
        self._waits: dict[int, _Wait] = {}
        self._last = 0

    def add(self, deferred: Deferred, request_bytes: int, respond: Respond) -> None:
        """Begins a wait that calls `respond` once, unless it is dropped before. `request_bytes` is
        what its request takes. Raises Busy, and what the wait raises when it begins."""
        try:
            self._begin(deferred, request_bytes, respond)
        except StoreError:
            deferred.end()
            raise

    def _begin(self, deferred: Deferred, request_bytes: int, respond: Respond) -> None:
        if len(self._waits) >= MAX_WAITS:
            raise Busy(f"{MAX_WAITS} waits are open on this connection, the limit; retry later")
        self._last += 1
        number = self._last  # not the client's id, which may repeat
        num_bytes = WAIT_BYTES + request_bytes
        self._memory.take(num_bytes)
        wait = self._waits[number] = _Wait(num_bytes, deferred.end)

        def end(reply: wire.Reply | Outgoing) -> None:
            if self._waits.pop(number, None) is not None:
                self._cancel(wait)
                respond(reply)

        def expire() -> None:
            """The loop counts from when its pass began, so its timers may be early."""
            left = due - time.monotonic()
            if left > 0:
                wait.timer = self._loop.call_later(max(left, LEAST_TIMER_SECONDS), expire)
            else:
                end(deferred.expired)

        due = time.monotonic() + deferred.timeout_s
        try:
            cancel = deferred.start(end)
        except StoreError:
            del self._waits[number]
            self._memory.give_back(num_bytes)
            raise
        if number in self._waits:
            wait.cancel = cancel
            wait.timer = self._loop.call_later(deferred.timeout_s, expire)

    def drop(self) -> None:
        """The connection has ended: none is answered any more."""
        for wait in list(self._waits.values()):
            self._cancel(wait)
        self._waits.clear()

    def _cancel(self, wait: _Wait) -> None:
        self._memory.give_back(wait.num_bytes)
        if wait.timer is not None:
            wait.timer.cancel()
        if wait.cancel is not None:
            wait.cancel()
        wait.end()

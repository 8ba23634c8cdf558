"""Who may use the loop when: clients that keep it busy wait for one another, and never make anyone
else (timers, the admin interface, new connections) wait for all of them."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

ROUND_SECONDS = 0.008
"""Of one pass of the loop that go to clients. The rest of their turns follow in the next one."""
NOTICED_SECONDS = ROUND_SECONDS / 8
"""Less than that may count for a later pass, too: to ask the loop for the next pass costs as much
as a short step."""

Step = Callable[[], None]


class Turns:
    """Steps are taken at once while a pass has time left, else in the order they came."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Step] = deque()
        self._spent = 0.0  # seconds of this pass
        self._round_due = False

    @property
    def are_due(self) -> bool:
        """Whether somebody waits for the next pass."""
        return self._round_due

    def take(self, step: Step) -> None:
        """Now if nobody waits, else after them."""
        if self._waiting or self._spent >= ROUND_SECONDS:
            self._waiting.append(step)
        else:
            self._do(step)
            if self._spent < NOTICED_SECONDS:
                return
        self._begin_round_soon()

    def wait(self, step: Step) -> None:
        """In the next pass, after everyone who waits already."""
        self._waiting.append(step)
        self._begin_round_soon()

    def _begin_round_soon(self) -> None:
        if not self._round_due:
            self._round_due = True
            self._loop.call_soon(self._round)

    def _round(self) -> None:
        self._round_due = False
        self._spent = 0.0
        for _ in range(len(self._waiting)):
            self._do(self._waiting.popleft())
            if self._spent >= ROUND_SECONDS:
                break
        if self._waiting:
            self._begin_round_soon()

    def _do(self, step: Step) -> None:
        begin = time.monotonic()
        step()
        self._spent += time.monotonic() - begin

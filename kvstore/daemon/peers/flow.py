"""How many bytes may be on their way here at once: those who want more wait, the urgent first."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from moontide.transfer.engine import Overtaking
from moontide.transfer.types import Priority


class _Turn(NamedTuple):
    num_bytes: int
    priority: Priority
    come: asyncio.Future[None]


class FlowLimit:
    """At most `limit_bytes` at a time, or a single larger piece. Of equal priority, first come,
    first served."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting = Overtaking[_Turn](lambda turn: turn.priority, lambda turn: turn.num_bytes)
        self.used_bytes = 0

    async def take(self, num_bytes: int, priority: Priority = Priority.NORMAL) -> None:
        """Whoever took gives back."""
        if not self._waiting and self._fits(num_bytes):
            self.used_bytes += num_bytes
            return
        turn = _Turn(num_bytes, priority, asyncio.get_running_loop().create_future())
        self._waiting.put(turn)
        self._admit()  # it may have overtaken what has no room
        try:
            await turn.come
        except asyncio.CancelledError:
            if turn.come.done() and not turn.come.cancelled():
                self.give_back(num_bytes)
            else:
                self._waiting.remove(lambda each: each is turn)
                self._admit()
            raise

    def give_back(self, num_bytes: int) -> None:
        self.used_bytes -= num_bytes
        self._admit()

    def _fits(self, num_bytes: int) -> bool:
        return not self.used_bytes or self.used_bytes + num_bytes <= self._limit_bytes

    def _admit(self) -> None:
        while self._waiting:
            turn = self._waiting.first()
            if turn.come.cancelled():  # its owner is about to take itself out
                return
            if not self._fits(turn.num_bytes):
                return
            self._waiting.take()
            self.used_bytes += turn.num_bytes
            turn.come.set_result(None)

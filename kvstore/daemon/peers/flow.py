"""How many bytes may be on their way here at once: those who want more wait in line."""

from __future__ import annotations

import asyncio
from collections import deque


class FlowLimit:
    """At most `limit_bytes` at a time, or a single larger piece. First come, first served."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.used_bytes = 0

    async def take(self, num_bytes: int) -> None:
        """Whoever took gives back."""
        if not self._waiting and self._fits(num_bytes):
            self.used_bytes += num_bytes
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        item = (num_bytes, turn)
        self._waiting.append(item)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(num_bytes)
            else:
                self._waiting.remove(item)
                self._admit()
            raise

    def give_back(self, num_bytes: int) -> None:
        self.used_bytes -= num_bytes
        self._admit()

    def _fits(self, num_bytes: int) -> bool:
        return not self.used_bytes or self.used_bytes + num_bytes <= self._limit_bytes

    def _admit(self) -> None:
        while self._waiting:
            num_bytes, turn = self._waiting[0]
            if turn.cancelled():  # its owner is about to take itself out
                return
            if not self._fits(num_bytes):
                return
            self._waiting.popleft()
            self.used_bytes += num_bytes
            turn.set_result(None)

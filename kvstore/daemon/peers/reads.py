"""Reads from peers' pools, awaited on the loop that owns the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TypeVar

from moontide.transfer import Transport
from moontide.transfer.types import Priority, SliceStatus, TransferRequest

ResultT = TypeVar("ResultT")


class PoolReads:
    """Over a transport that stays its owner's, who closes it after the last read has ended."""

    def __init__(self, transport: Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop

    async def read(
        self,
        requests: Sequence[TransferRequest],
        examine: Callable[[Sequence[SliceStatus]], ResultT],
        examiners: Executor,
        *,
        deadline: float,
        priority: Priority = Priority.NORMAL,
    ) -> ResultT:
        """What `examine` makes of the statuses, one a request, in a thread of `examiners`: begun
        where the reads ended, so that the loop is woken once. None of their memory is touched any
        more then: also a cancelled caller is only let go then. Raises what `Transport.submit` and
        `examine` raise."""
        ended: asyncio.Future[ResultT] = self._loop.create_future()

        def look(statuses: Sequence[SliceStatus]) -> None:
            try:
                result = examine(statuses)
            except Exception as error:  # noqa: BLE001 - thread boundary: raised by `read`
                self._loop.call_soon_threadsafe(ended.set_exception, error)
            else:
                self._loop.call_soon_threadsafe(ended.set_result, result)

        def then(statuses: Sequence[SliceStatus]) -> None:
            examiners.submit(look, statuses)

        batch = self._transport.submit(requests, deadline=deadline, then=then, priority=priority)
        cancelled: asyncio.CancelledError | None = None
        while not ended.done():
            try:
                await asyncio.wait({ended})
            except asyncio.CancelledError as error:
                cancelled = error
                self._transport.cancel(batch)
        if cancelled is not None:
            raise cancelled
        return ended.result()

"""Reads from peers' pools, awaited on the loop that owns the store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from moontide.transfer import Transport
from moontide.transfer.types import BatchId, Priority, SliceStatus, TransferRequest


class PoolReads:
    """Gives the loop the ends of one transport's batches. The transport stays its owner's, who
    closes it after this."""

    def __init__(self, transport: Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._waiting: dict[BatchId, asyncio.Future[None]] = {}
        loop.add_reader(transport.fileno(), self._take_finished)

    async def read(
        self,
        requests: Sequence[TransferRequest],
        *,
        deadline: float,
        priority: Priority = Priority.NORMAL,
    ) -> tuple[SliceStatus, ...]:
        """One status a request, when none of their memory is touched any more: also a cancelled
        caller is only let go then. Raises what `Transport.submit` raises."""
        batch = self._transport.submit(requests, deadline=deadline, priority=priority)
        ended = self._waiting[batch] = self._loop.create_future()
        cancelled: asyncio.CancelledError | None = None
        while not ended.done():
            try:
                await asyncio.wait({ended})
            except asyncio.CancelledError as error:
                cancelled = error
                self._transport.cancel(batch)
        statuses = self._transport.poll(batch)
        self._transport.forget(batch)
        if cancelled is not None:
            raise cancelled
        return statuses

    def close(self) -> None:
        """After the last read has ended."""
        self._loop.remove_reader(self._transport.fileno())

    def _take_finished(self) -> None:
        for batch in self._transport.finished():
            ended = self._waiting.pop(batch, None)
            if ended is not None:
                ended.set_result(None)

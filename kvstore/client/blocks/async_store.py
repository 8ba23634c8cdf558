"""`await async_client.kv(...)`: KV blocks of one namespace for programs that run on asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...keys import BlockKey, Extra, TokenIds
from ..deadline import Deadline
from .awaiting import Arrival, run, wait_attached
from .block_jobs import BlockJobs
from .block_store import BlockStore
from .desk import hit_of, raise_unless_done
from .polled_store import PolledBlockStore
from .streams import ReaderSteps, WriterSteps
from .types import JobResult, PrefixHit, Ticket

if TYPE_CHECKING:
    from typing_extensions import Buffer


class AsyncBlockStore(PolledBlockStore):
    """The mirror of BlockStore: what waits there is awaited here. Jobs may also be submitted and
    polled: `fileno()` goes into `loop.add_reader`. A cancelled call cancels its job, and ends once
    nothing touches the caller's buffers any more."""

    def __init__(self, store: BlockStore) -> None:
        super().__init__(store.jobs, store.namespace, store.timeout_s, store.replicas)
        self._store = store

    async def lookup(
        self,
        token_ids: TokenIds,
        *,
        extra: Extra = (),
        pin_s: float | None = None,
        timeout_s: float | None = None,
    ) -> PrefixHit:
        keys = self.keys(token_ids, extra=extra)
        make = self.jobs.lookup(keys, pin_s, pending=False)
        return hit_of(await run(self.jobs.desk, make, self.limit(timeout_s)))

    async def load(
        self,
        ticket: Ticket,
        layers: Sequence[int],
        destinations: Sequence[Sequence[Buffer]],
        *,
        blocks: Sequence[int] | None = None,
        timeout_s: float | None = None,
    ) -> JobResult:
        make = self.jobs.load(ticket, layers, destinations, blocks)
        return await run(self.jobs.desk, make, self.limit(timeout_s))

    def reader(
        self, token_ids: TokenIds, *, extra: Extra = (), timeout_s: float | None = None
    ) -> AsyncBlockReader:
        keys = self.keys(token_ids, extra=extra)
        return AsyncBlockReader(self.jobs, keys, self.limit(timeout_s))

    def writer(
        self,
        token_ids: TokenIds,
        *,
        first_block: int = 0,
        extra: Extra = (),
        replicas: int | None = None,
        timeout_s: float | None = None,
    ) -> AsyncBlockWriter:
        keys, wanted = self.keys(token_ids, extra=extra), self.wanted(replicas)
        return AsyncBlockWriter(
            self.jobs, keys, first_block, self.limit(timeout_s), replicas=wanted
        )

    async def close(self) -> None:
        """As that of BlockStore."""
        await asyncio.to_thread(self._store.close)

    async def __aenter__(self) -> AsyncBlockStore:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


class AsyncBlockReader(ReaderSteps):
    """As BlockReader; opened by `async with`."""

    def __init__(self, jobs: BlockJobs, keys: Sequence[BlockKey], deadline: Deadline) -> None:
        super().__init__(jobs, keys)
        self._deadline = deadline

    async def layer(self, layer: int) -> list[memoryview]:
        make, buffers = self._load(layer)
        raise_unless_done(await run(self._jobs.desk, make, self._deadline))
        return [memoryview(buffer) for buffer in buffers]

    async def close(self) -> None:
        self._release()

    async def __aenter__(self) -> AsyncBlockReader:
        self._found(await run(self._jobs.desk, self._find(), self._deadline))
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


class AsyncBlockWriter(WriterSteps):
    """As BlockWriter; the space is reserved by `async with`."""

    def __init__(
        self,
        jobs: BlockJobs,
        keys: Sequence[BlockKey],
        first_block: int,
        deadline: Deadline,
        *,
        replicas: int = 1,
    ) -> None:
        super().__init__(jobs, keys, first_block, replicas=replicas)
        self._deadline = deadline
        self._result: Arrival

    async def layer(self, layer: int, buffers: Sequence[Buffer | None]) -> None:
        arrival = Arrival(self._jobs.desk)
        left = self._deadline.check("writer")
        job = self._jobs.store_layer(self._store, layer, buffers, left, arrival.deliver)
        raise_unless_done(await arrival.result(job, left))

    async def commit(self) -> JobResult:
        self._commit()
        result = await self._result.result(self._store.job, self._deadline.remaining())
        self._committed(result)
        return result

    async def abort(self) -> None:
        self._abort()
        await self._result.result(self._store.job, self._deadline.remaining())

    async def __aenter__(self) -> AsyncBlockWriter:
        await wait_attached(self._jobs.desk, self._deadline)
        self._result = Arrival(self._jobs.desk)
        self._begin(self._deadline.check("writer"), self._result.deliver)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if kind is not None:
            await self.abort()
        elif not self._ended:
            await self.commit()

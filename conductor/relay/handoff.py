"""A split plan: one worker computes the prompt, another one decodes.

    reserve at D ──► ask P ──► token 1 ──► client ──► D's tokens
         │             │           └─────► D            │
         │             └ until here a lost D is replaced│
         └ a lost P ends the run                        └ a lost D ends the run

D fetches the prompt's KV from the store of P's node while P computes it, so which D does that is
nothing P knows of. After token 1 P is no longer needed: what D misses it computes itself.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from ..cluster.workers import OpenRequest, Worker
from ..upstream import Chunk, Expect, GenerationBody, RemoteDecode, RemotePrefill
from .evidence import of_both, signed
from .job import Job
from .legs import Leg, LegFailed, Legs, Part

RESERVED = "reserved"
PREFILL_USAGE_SECONDS = 2.0
"""How long the end of an answer waits for what the prefill worker tells of its part."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class SplitPlan:
    prefill: Worker
    decode: Worker
    cached_tokens: int  # expected at the prefill worker


@dataclass(frozen=True, slots=True)
class Substitutes:
    """How a run deals with a worker that failed but does not end it."""

    decode: Callable[[LegFailed], Worker | None]  # another one; None: the failure ends the run
    note: Callable[[LegFailed], None]


class Split:
    """The run. Its tasks and legs end with `close`."""

    def __init__(
        self,
        legs: Legs,
        job: Job,
        body: GenerationBody,
        plan: SplitPlan,
        substitutes: Substitutes,
    ) -> None:
        self.worker = plan.decode
        self.prefill_worker = plan.prefill
        self._legs = legs
        self._job = job
        self._body = body
        self._cached_tokens = plan.cached_tokens
        self._substitutes = substitutes
        self._handoff_id = secrets.token_hex(16)
        self._promised: OpenRequest | None = None  # counts at P before P is asked
        self._prefill: Leg | None = None
        self._decode: Leg | None = None
        self._upcoming: asyncio.Task[Chunk | None] | None = None  # D's next chunk, being read
        self._told: asyncio.Task[None] | None = None  # D, of token 1
        self._summary: asyncio.Task[Chunk | None] | None = None  # P's last chunk, being read
        self._tasks: list[asyncio.Task[Any]] = []
        self._has_begun = False

    async def next(self) -> Chunk | None:
        if not self._has_begun:
            self._has_begun = True
            return await self._first_token()
        assert self._prefill is not None
        if self._decode is None:  # token 1 was the last
            chunk = await self._prefill.next()
            return self._signed(chunk) if chunk is not None else None
        while (chunk := await self._next_decoded()) is not None:
            if chunk.usage is not None:
                return await self._summed_up(chunk)
            if chunk.choices:
                return chunk
        return None

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
            task.add_done_callback(_forget_outcome)
        for leg in (self._prefill, self._decode):
            if leg is not None:
                leg.close()
        self._keep_promise()

    # -- until token 1 ----------------------------------------------------------------

    async def _first_token(self) -> Chunk:
        self._promised = self.prefill_worker.open(
            prompt_tokens=len(self._body.prompt),
            cached_tokens=self._cached_tokens,
            now=time.monotonic(),
        )
        self._decode = await self._reserve(self.worker)
        chunk = await self._while_reserved(self._ask_prefill())
        [choice] = chunk.choices
        assert choice.token_ids is not None
        if choice.finish_reason == "stop":
            self._decode.close()
            self._decode = None
            return chunk
        self._told = self._start(self._tell(self._decode, choice.token_ids[0]))
        self._summary = self._start(self._last_of_prefill())
        return msgspec.structs.replace(
            chunk, choices=[msgspec.structs.replace(choice, finish_reason=None)]
        )

    async def _reserve(self, worker: Worker) -> Leg:
        """Waits, however long the queue there moves, until `worker` has room for the request."""
        parameters = RemotePrefill(
            handoff_id=self._handoff_id, store_instance=self.prefill_worker.record.store_instance
        )
        body = msgspec.structs.replace(self._body, kv_transfer_params=parameters)
        leg = await self._legs.open(
            self._job, worker, Part.DECODE, body, cached_tokens=len(body.prompt)
        )
        try:
            while (chunk := await leg.next()) is not None and not chunk.choices:
                news = chunk.kv_transfer_params
                if news is not None and news.state == RESERVED:
                    leg.expect(Expect.NOTHING)
                    return leg
            raise leg.broken("the worker answered without reserving first")
        except BaseException:
            leg.close()
            raise

    async def _while_reserved(self, work: Coroutine[Any, Any, _T]) -> _T:
        """What `work` at P gives; a D that is lost meanwhile is replaced."""
        working = self._start(work)
        while True:
            assert self._decode is not None
            watched = self._start(self._decode.next())
            await asyncio.wait({working, watched}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                self._upcoming = watched
                return working.result()
            try:
                chunk = watched.result()
                if chunk is None or chunk.choices or chunk.usage is not None:
                    raise self._decode.broken("the worker generated before it had the first token")
            except LegFailed as failed:
                await self._replace_decode(failed)

    async def _replace_decode(self, failed: LegFailed) -> None:
        """Raises LegFailed, the last failure, when nobody else is left."""
        while True:
            if self._decode is not None:
                self._decode.close()
                self._decode = None
            worker = self._substitutes.decode(failed)
            if worker is None:
                raise failed
            self.worker = worker
            try:
                self._decode = await self._reserve(worker)
                return
            except LegFailed as again:
                failed = again

    async def _ask_prefill(self) -> Chunk:
        """P's chunk with token 1."""
        self._keep_promise()
        parameters = RemoteDecode(handoff_id=self._handoff_id)
        body = msgspec.structs.replace(self._body, max_tokens=1, kv_transfer_params=parameters)
        self._prefill = await self._legs.open(
            self._job,
            self.prefill_worker,
            Part.PREFILL,
            body,
            cached_tokens=self._cached_tokens,
        )
        while (chunk := await self._prefill.next()) is not None:
            if len(chunk.choices) == chunk.num_tokens == 1:
                return chunk
            if chunk.choices:
                raise self._prefill.broken(f"the worker sent {chunk.num_tokens} first tokens")
        raise self._prefill.broken("the worker sent no first token")

    def _keep_promise(self) -> None:
        if self._promised is not None:
            self._promised.close(time.monotonic())

    # -- after it ---------------------------------------------------------------------

    async def _tell(self, decode: Leg, token_id: int) -> None:
        decode.expect(Expect.TOKEN)
        await self._legs.give_first_token(decode, self._handoff_id, token_id)

    async def _last_of_prefill(self) -> Chunk | None:
        """The chunk with P's usage; None where P fails now, which harms nothing."""
        assert self._prefill is not None
        last: Chunk | None = None
        try:
            while (chunk := await self._prefill.next()) is not None:
                last = chunk if chunk.usage is not None else last
        except LegFailed as failed:
            self._substitutes.note(failed)
        self._prefill.close()
        return last

    async def _next_decoded(self) -> Chunk | None:
        """Tokens prove that D has token 1, whatever became of telling it."""
        assert self._decode is not None
        assert self._told is not None
        upcoming, self._upcoming = self._upcoming, None
        if upcoming is None:
            return await self._decode.next()
        await asyncio.wait({upcoming, self._told}, return_when=asyncio.FIRST_COMPLETED)
        if not upcoming.done():
            await self._told
        return await upcoming

    async def _summed_up(self, decoded: Chunk) -> Chunk:
        """D's last chunk, with what P tells of its part, if it does soon."""
        assert self._summary is not None
        await asyncio.wait({self._summary}, timeout=PREFILL_USAGE_SECONDS)
        prefilled = self._summary.result() if self._summary.done() else None
        return self._signed(of_both(decoded, prefilled))

    def _signed(self, chunk: Chunk) -> Chunk:
        return signed(chunk, prefill=self.prefill_worker.record.id, decode=self.worker.record.id)

    def _start(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        task = asyncio.create_task(work)
        self._tasks.append(task)
        return task


def _forget_outcome(task: asyncio.Task[Any]) -> None:
    """Nobody asks for it any more: a failure is not to be reported as forgotten."""
    if not task.cancelled():
        task.exception()

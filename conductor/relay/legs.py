"""One call of one worker as part of a plan."""

from __future__ import annotations

import enum
import time

from ..cluster.view import ClusterView
from ..cluster.workers import OpenRequest, Worker
from ..protocol import Usage
from ..upstream import (
    CallFailed,
    Chunk,
    ChunkStream,
    Expect,
    Failure,
    GenerationBody,
    Patience,
    WorkerCalls,
)
from .job import Deadlines, Job


class Part(enum.StrEnum):
    """What of the plan a worker does."""

    WHOLE = "whole"
    PREFILL = "prefill"
    DECODE = "decode"


class LegFailed(Exception):
    """A worker failed in its part."""

    def __init__(self, worker: Worker, part: Part, call: CallFailed) -> None:
        super().__init__(str(call))
        self.worker = worker
        self.part = part
        self.call = call


class Leg:
    """One call of one worker, from being answered until `close`. Only one `next` at a time."""

    def __init__(
        self, worker: Worker, part: Part, stream: ChunkStream, open_request: OpenRequest
    ) -> None:
        self.worker = worker
        self.part = part
        self._stream = stream
        self._open = open_request
        self._usage: Usage | None = None
        self._has_ended = False

    async def next(self) -> Chunk | None:
        """The next chunk, None after the last; some chunk had the usage. Raises LegFailed."""
        try:
            chunk = await self._stream.next()
        except CallFailed as failed:
            raise LegFailed(self.worker, self.part, failed) from failed
        if chunk is None:
            if self._usage is None:
                raise self.broken("the worker ended its answer without a usage")
            self._has_ended = True
            return None
        if any(choice.text and choice.token_ids is None for choice in chunk.choices):
            raise self.broken("the worker sent text without the token ids asked for")
        if chunk.num_tokens:
            self._open.tokens(chunk.num_tokens, time.monotonic())
        self._usage = chunk.usage or self._usage
        return chunk

    def expect(self, expect: Expect) -> None:
        self._stream.expect(expect)

    def broken(self, text: str) -> LegFailed:
        """The worker answered, but not as agreed."""
        return LegFailed(self.worker, self.part, CallFailed(Failure.BROKEN, text))

    def close(self) -> None:
        """Counts the call as ended. Unless it has ended well, the worker sees an abort. Further
        calls do nothing."""
        if self._has_ended and self._usage is not None:
            self._stream.release()
            cached = self._usage.prompt_tokens_details.cached_tokens
            self._open.close(time.monotonic(), cached_tokens=cached)
        else:
            self._stream.close()
            self._open.close(time.monotonic())


class Legs:
    """Opens them."""

    def __init__(self, view: ClusterView, calls: WorkerCalls, deadlines: Deadlines) -> None:
        self._view = view
        self._calls = calls
        self._deadlines = deadlines

    async def open(
        self, job: Job, worker: Worker, part: Part, body: GenerationBody, *, cached_tokens: int
    ) -> Leg:
        """Waits until the worker begins to answer. Raises LegFailed."""
        open_request = worker.open(
            prompt_tokens=len(body.prompt), cached_tokens=cached_tokens, now=time.monotonic()
        )
        try:
            stream = await self._calls.generate(
                worker.record.url, body, job.request_id, self._patience(worker)
            )
        except CallFailed as failed:
            open_request.close(time.monotonic())
            raise LegFailed(worker, part, failed) from failed
        except BaseException:
            open_request.close(time.monotonic())
            raise
        return Leg(worker, part, stream, open_request)

    async def give_first_token(self, leg: Leg, handoff_id: str, token_id: int) -> None:
        """Raises LegFailed."""
        try:
            await self._calls.give_first_token(leg.worker.record.url, handoff_id, token_id)
        except CallFailed as failed:
            raise LegFailed(leg.worker, leg.part, failed) from failed

    def _patience(self, worker: Worker) -> Patience:
        def is_lost() -> bool:
            now = time.monotonic()
            if worker.is_suspect(now) and self._view.has_substitute(worker):
                return True
            return worker.is_lost(now)

        return Patience(
            first_token_seconds=self._deadlines.first_token_seconds,
            token_seconds=self._deadlines.token_seconds,
            last_token=lambda: worker.last_token,
            is_lost=is_lost,
        )

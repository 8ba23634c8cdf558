"""One request from arrival to its last token: choose a worker, send, and choose again when the
worker fails, as long as the client was shown nothing: until the first token of a stream, until the
last of a plain answer. After that a failure is the stream's end."""

from __future__ import annotations

import enum
import logging
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from .cluster.models import ModelKey
from .cluster.view import ClusterView
from .cluster.workers import OpenRequest, Worker
from .errors import BadRequest, NoWorker, Overloaded, WorkerFailed, WorkerLost
from .metrics import Metrics
from .protocol import Usage
from .routing import Choice, Refusal, route
from .tokenising import Tokenised
from .upstream import CallFailed, Chunk, ChunkStream, Failure, GenerationBody, Patience, WorkerCalls

_log = logging.getLogger(__name__)
MAX_ATTEMPTS = 4


class Delivery(enum.Enum):
    """When the client sees what is generated."""

    STREAM = "token by token"
    WHOLE = "all at once, at the end"


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be generated, and for whom."""

    request_id: str
    model: ModelKey
    prompt: Tokenised
    body: GenerationBody
    delivery: Delivery
    arrived_at: float  # monotonic


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Longest waits for progress, see `Patience`."""

    first_token_seconds: float
    token_seconds: float


class Answer:
    """The chunks of a job: the first has come, or all, as its delivery needs. `usage` is there
    after the last."""

    def __init__(
        self, job: Job, choice: Choice, stream: ChunkStream, open_request: OpenRequest
    ) -> None:
        self.job = job
        self.choice = choice
        self.attempts = 1
        self.ttft_seconds = 0.0
        self.usage: Usage | None = None
        self.last: Chunk | None = None  # the one that carries the usage
        self.is_complete = False
        self._stream = stream
        self._open = open_request
        self._taken: deque[Chunk] = deque()  # not shown yet

    async def begin(self) -> None:
        """Wait for the first token, or for all of a plain answer. Raises CallFailed: the client was
        shown nothing, so another worker may be asked."""
        while await self._take() and self.job.delivery is Delivery.WHOLE:
            pass

    async def chunks(self) -> AsyncIterator[Chunk]:
        """Raises WorkerLost or WorkerFailed where the worker fails in the middle."""
        while True:
            while self._taken:
                yield self._taken.popleft()
            try:
                if not await self._take():
                    return
            except CallFailed as failed:
                raise _midway(failed) from failed

    async def _take(self) -> bool:
        """One more chunk; False after the last. Raises CallFailed."""
        if self.is_complete:
            return False
        chunk = await self._stream.next()
        if chunk is None:
            if self.usage is None:
                raise CallFailed(Failure.BROKEN, "the worker ended its answer without a usage")
            self.is_complete = True
            return False
        if not self.ttft_seconds:
            self.ttft_seconds = time.monotonic() - self.job.arrived_at
        self._note(chunk)
        self._taken.append(chunk)
        return True

    def _note(self, chunk: Chunk) -> None:
        count = sum(len(choice.token_ids or ()) for choice in chunk.choices)
        if chunk.choices:
            self._open.tokens(count, time.monotonic())
        if chunk.usage is not None:
            self.usage, self.last = chunk.usage, chunk

    def close(self) -> None:
        """Counts the request as ended. Where it is not complete the worker sees an abort."""
        if self.is_complete and self.usage is not None:
            self._stream.release()
            cached = self.usage.prompt_tokens_details.cached_tokens
            self._open.close(time.monotonic(), cached_tokens=cached)
        else:
            self._stream.close()
            self._open.close(time.monotonic())


@dataclass(slots=True)
class _Attempts:
    """Where a job has been, and what came of it."""

    tried: set[str] = field(default_factory=set)  # instances
    last: CallFailed | None = None
    busy: bool = False


class Relay:
    """Sends jobs to workers, at most MAX_ATTEMPTS times each."""

    def __init__(
        self, view: ClusterView, calls: WorkerCalls, metrics: Metrics, deadlines: Deadlines
    ) -> None:
        self._view = view
        self._calls = calls
        self._metrics = metrics
        self._deadlines = deadlines

    @asynccontextmanager
    async def answer(self, job: Job) -> AsyncIterator[Answer]:
        """The answer once it can be shown; on leaving, whatever happened, the worker's
        connection and the count of open requests are as if the request had never been. Raises
        BadRequest, Overloaded, NoWorker, WorkerLost, WorkerFailed."""
        answer = await self._open(job)
        try:
            yield answer
        finally:
            answer.close()
            self._report(answer)

    async def _open(self, job: Job) -> Answer:
        attempts = _Attempts()
        while True:
            decision = self._decide(job, attempts)
            worker = self._view.workers[decision.worker]
            try:
                answer = await self._attempt(job, decision, worker)
            except CallFailed as failed:
                if failed.failure is Failure.REFUSED:
                    raise BadRequest(str(failed), field=failed.field) from failed
                self._note_failure(job, worker, failed)
                attempts.tried.add(worker.record.instance)
                attempts.last = failed
                attempts.busy |= failed.failure is Failure.BUSY
                continue
            answer.attempts = len(attempts.tried) + 1
            self._metrics.routed.labels(reason=decision.reason).inc()
            self._metrics.ttft.observe(answer.ttft_seconds)
            return answer

    def _decide(self, job: Job, attempts: _Attempts) -> Choice:
        decision: Choice | Refusal | None = None
        if len(attempts.tried) < MAX_ATTEMPTS:
            decision = route(
                self._view.snapshot(
                    job.model,
                    len(job.prompt.token_ids),
                    job.prompt.keys,
                    frozenset(attempts.tried),
                )
            )
        if isinstance(decision, Choice):
            return decision
        if attempts.last is not None:
            raise _exhausted(attempts.last, len(attempts.tried), attempts.busy)
        assert decision is not None
        error = Overloaded if decision.overloaded else NoWorker
        raise error(decision.message, retry_after_s=decision.retry_after_s)

    async def _attempt(self, job: Job, decision: Choice, worker: Worker) -> Answer:
        patience = Patience(
            first_token_seconds=self._deadlines.first_token_seconds,
            token_seconds=self._deadlines.token_seconds,
            last_token=lambda: worker.last_token,
            is_lost=lambda: worker.is_lost(time.monotonic()),
        )
        open_request = worker.open(
            prompt_tokens=len(job.prompt.token_ids),
            cached_tokens=decision.cached_tokens,
            now=time.monotonic(),
        )
        stream: ChunkStream | None = None
        try:
            stream = await self._calls.generate(
                worker.record.url, job.body, job.request_id, patience
            )
            answer = Answer(job, decision, stream, open_request)
            await answer.begin()
        except BaseException:
            if stream is not None:
                stream.close()
            open_request.close(time.monotonic())
            raise
        return answer

    def _note_failure(self, job: Job, worker: Worker, failed: CallFailed) -> None:
        self._metrics.worker_failures.labels(cause=failed.failure).inc()
        if failed.failure is Failure.UNREACHABLE:
            worker.refused(str(failed))
        _log.warning(
            "worker_failed request=%s worker=%s cause=%s detail=%s",
            job.request_id,
            worker.record.id,
            failed.failure,
            failed,
        )

    def _report(self, answer: Answer) -> None:
        """Predicted against actual, for every request that ended well."""
        usage, choice, job = answer.usage, answer.choice, answer.job
        if not answer.is_complete or usage is None:
            return
        cached = usage.prompt_tokens_details.cached_tokens
        self._metrics.prompt_tokens.inc(usage.prompt_tokens)
        self._metrics.predicted_cached_tokens.inc(choice.cached_tokens)
        self._metrics.cached_tokens.inc(cached)
        self._metrics.prediction_error.observe(abs(choice.cached_tokens - cached))
        _log.info(
            "request_done request=%s worker=%s reason=%s attempts=%d prompt_tokens=%d "
            "predicted_cached_tokens=%d cached_tokens=%d completion_tokens=%d ttft_s=%.3f",
            job.request_id,
            choice.worker,
            choice.reason,
            answer.attempts,
            usage.prompt_tokens,
            choice.cached_tokens,
            cached,
            usage.completion_tokens,
            answer.ttft_seconds,
        )


def _midway(failed: CallFailed) -> WorkerFailed | WorkerLost:
    if failed.failure is Failure.BROKEN:
        return WorkerFailed(str(failed))
    return WorkerLost(f"{failed}; what was generated before is cut off here")


def _exhausted(
    failed: CallFailed, num_tried: int, busy: bool
) -> Overloaded | WorkerFailed | WorkerLost:
    tried = "1 worker was" if num_tried == 1 else f"{num_tried} workers were"
    text = f"{tried} tried; the last: {failed}"
    if busy:
        return Overloaded(text, retry_after_s=1.0)
    if failed.failure is Failure.BROKEN:
        return WorkerFailed(text)
    return WorkerLost(text, retry_after_s=1.0)

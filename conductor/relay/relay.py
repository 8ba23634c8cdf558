"""Jobs in, answers out; what each request came to is counted and logged."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ..cluster.view import ClusterView
from ..metrics import Metrics
from ..upstream import WorkerCalls
from .answer import Answer
from .attempts import Attempts
from .job import Deadlines, Job
from .legs import Legs

logger = logging.getLogger(__name__)


class Relay:
    """Answers jobs from the workers of `view`."""

    def __init__(
        self, view: ClusterView, calls: WorkerCalls, metrics: Metrics, deadlines: Deadlines
    ) -> None:
        self._view = view
        self._legs = Legs(view, calls, deadlines)
        self._metrics = metrics
        self._deadlines = deadlines

    @asynccontextmanager
    async def answer(self, job: Job) -> AsyncIterator[Answer]:
        """The answer once it can be shown; on leaving, whatever happened, the workers' connections
        and the counts of open requests are as if the request had never been. Raises
        ConductorError."""
        attempts = Attempts(job, self._view, self._legs, self._metrics)
        answer = Answer(job, attempts, job.arrived_at + self._deadlines.request_seconds)
        try:
            await answer.begin()
            self._report_begin(answer)
            yield answer
        finally:
            answer.close()
            self._report_end(answer)

    def _report_begin(self, answer: Answer) -> None:
        plan = "colocated" if answer.choice.prefill_worker is None else "split"
        self._metrics.routed.labels(reason=answer.choice.reason).inc()
        self._metrics.plans.labels(plan=plan).inc()
        self._metrics.ttft.observe(answer.ttft_seconds)

    def _report_end(self, answer: Answer) -> None:
        """Predicted against actual, for every request that ended well where it began."""
        usage, choice, job = answer.usage, answer.choice, answer.job
        if not answer.is_complete or usage is None:
            return
        cached = usage.prompt_tokens_details.cached_tokens
        if answer.is_measured:
            self._metrics.prompt_tokens.inc(usage.prompt_tokens)
            self._metrics.predicted_cached_tokens.inc(choice.cached_tokens)
            self._metrics.cached_tokens.inc(cached)
            self._metrics.prediction_error.observe(abs(choice.cached_tokens - cached))
        prefill = answer.run.prefill_worker
        logger.info(
            "request_done request=%s worker=%s prefill_worker=%s reason=%s attempts=%d "
            "prompt_tokens=%d predicted_cached_tokens=%d cached_tokens=%d completion_tokens=%d "
            "ttft_s=%.3f",
            job.request_id,
            answer.run.worker.record.id,
            "-" if prefill is None else prefill.record.id,
            choice.reason,
            answer.attempts,
            usage.prompt_tokens,
            choice.cached_tokens,
            cached,
            usage.completion_tokens,
            answer.ttft_seconds,
        )

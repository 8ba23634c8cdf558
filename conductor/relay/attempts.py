"""Where a job may be tried next, and what came of it before."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ..cluster.view import ClusterView
from ..cluster.workers import Worker
from ..errors import BadRequest, ConductorError, NoWorker, Overloaded, WorkerFailed, WorkerLost
from ..metrics import Metrics
from ..routing import Choice, Refusal, Snapshot, pick_decode, route, route_resumed, route_to
from ..upstream import Failure
from .handoff import Split, SplitPlan, Substitutes
from .job import Job
from .legs import LegFailed, Legs
from .runs import Colocated, Run

logger = logging.getLogger(__name__)
MAX_ATTEMPTS = 4


class Attempts:
    """Of one job. At most MAX_ATTEMPTS workers may fail it, each of them once."""

    def __init__(self, job: Job, view: ClusterView, legs: Legs, metrics: Metrics) -> None:
        self._job = job
        self._view = view
        self._legs = legs
        self._metrics = metrics
        self._tried: set[str] = set()  # instances that failed
        self._last: LegFailed | None = None
        self._met_busy = False
        self.count = 0  # runs begun

    def begin(self, output: Sequence[int]) -> tuple[Choice, Run]:
        """A run that goes on after `output`. Raises ConductorError when nobody is left."""
        choice = self._decide(output)
        self.count += 1
        if output:
            self._metrics.resumes.inc()
            logger.info(
                "request_resumed request=%s worker=%s tokens=%d",
                self._job.request_id,
                choice.worker,
                len(output),
            )
        return choice, self._run(choice, output)

    def failed(self, failed: LegFailed, output: Sequence[int]) -> None:
        """A run ended so. Raises BadRequest when the job is at fault, not the worker; one that
        already gave tokens for it is."""
        if failed.call.failure is Failure.REFUSED and not output:
            raise BadRequest(str(failed), field=failed.call.field) from failed
        self.note(failed)
        self._tried.add(failed.worker.record.instance)
        self._last = failed
        self._met_busy |= failed.call.failure is Failure.BUSY

    def note(self, failed: LegFailed) -> None:
        worker, call = failed.worker, failed.call
        self._metrics.worker_failures.labels(cause=call.failure, part=failed.part).inc()
        if call.failure is Failure.UNREACHABLE:
            worker.refused(str(call))
        logger.warning(
            "worker_failed request=%s worker=%s part=%s cause=%s detail=%s",
            self._job.request_id,
            worker.record.id,
            failed.part,
            call.failure,
            call,
        )

    # -- inside -----------------------------------------------------------------------

    def _decide(self, output: Sequence[int]) -> Choice:
        decision: Choice | Refusal | None = None
        if len(self._tried) < MAX_ATTEMPTS:
            snapshot = self._snapshot()
            if self._job.worker is not None:
                decision = route_to(snapshot, self._job.worker)
            else:
                decision = route_resumed(snapshot) if output else route(snapshot)
        if isinstance(decision, Choice):
            return decision
        if self._last is not None:
            raise self._exhausted(self._last, output)
        assert decision is not None
        error = Overloaded if decision.overloaded else NoWorker
        raise error(decision.message, retry_after_s=decision.retry_after_s)

    def _run(self, choice: Choice, output: Sequence[int]) -> Run:
        worker, body = self._view.workers[choice.worker], self._job.body_after(output)
        if choice.prefill_worker is None:
            return Colocated(self._legs, self._job, worker, body, choice.cached_tokens)
        plan = SplitPlan(
            prefill=self._view.workers[choice.prefill_worker],
            decode=worker,
            cached_tokens=choice.cached_tokens,
        )
        return Split(self._legs, self._job, body, plan, Substitutes(self._other_decode, self.note))

    def _other_decode(self, failed: LegFailed) -> Worker | None:
        """Instead of one that failed before token 1; None where nobody is left, or the job is at
        fault: the failure then ends the run, and is counted with it."""
        used = self._tried | {failed.worker.record.instance}
        picked = None
        if failed.call.failure is not Failure.REFUSED and len(used) < MAX_ATTEMPTS:
            picked = pick_decode(self._snapshot(used).candidates)
        if picked is None:
            return None
        self.failed(failed, ())
        self._metrics.decode_repicks.inc()
        return self._view.workers[picked.id]

    def _snapshot(self, used: set[str] | None = None) -> Snapshot:
        job = self._job
        return self._view.snapshot(
            job.model,
            prompt_tokens=len(job.prompt.token_ids),
            keys=job.prompt.keys,
            max_tokens=job.body.max_tokens,
            tried=frozenset(self._tried if used is None else used),
        )

    def _exhausted(self, failed: LegFailed, output: Sequence[int]) -> ConductorError:
        count = len(self._tried)
        tried = "1 worker was" if count == 1 else f"{count} workers were"
        text = f"{tried} tried; the last: {failed}"
        if output:
            text += f"; the answer is cut off after {len(output)} tokens"
        if failed.call.failure is Failure.BROKEN:
            return WorkerFailed(text)
        if self._met_busy and not output:
            return Overloaded(text, retry_after_s=1.0)
        return WorkerLost(text, retry_after_s=1.0)

"""The engine thread's desk at the store: hand over a job or be refused at once, hear of it later.

Whatever the store raises becomes a refusal that is counted, and a store that keeps failing is left
alone for a while (`Breaker`), so that it never makes the engine worse than no store.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from moontide.kvstore import JobId, JobResult
from moontide.kvstore.errors import StoreError
from moontide.transfer.errors import TransferError

from .breaker import Breaker
from .kv_jobs import KvJobs
from .readiness import wait_readable
from .store_link import StoreLink

logger = logging.getLogger(__name__)
_T = TypeVar("_T")

GRACE_S = 0.05
"""How much later than its deadline a job's result may come before the engine stops waiting."""
LOOK_S = 0.02
"""How often a wait looks whether its result is still wanted."""
STORE_ERRORS = (StoreError, TransferError, OSError)


class StagingBudget:
    """Bytes of host memory that transfers may hold at once, quarantined ones included."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def take(self, num_bytes: int) -> bool:
        if self.used_bytes + num_bytes > self.limit_bytes:
            return False
        self.used_bytes += num_bytes
        return True

    def give(self, num_bytes: int) -> None:
        assert num_bytes <= self.used_bytes
        self.used_bytes -= num_bytes


class JobDesk:
    """Engine thread only. A buffer handed to a job belongs to it until its result came: the
    callback kept here is what keeps the buffer alive, also after the request is gone."""

    def __init__(self, link: StoreLink, breaker: Breaker, staging: StagingBudget) -> None:
        self.link = link
        self.breaker = breaker
        self.staging = staging
        self.errors = 0
        self._watched: dict[JobId, Callable[[JobResult], None]] = {}

    @property
    def kv(self) -> KvJobs:
        """Raises StoreUnavailable while there is none: use it inside `submit` and `attempt`."""
        return self.link.store()

    @property
    def num_outstanding(self) -> int:
        return len(self._watched)

    def submit(
        self, call: Callable[[], JobId], on_result: Callable[[JobResult], None]
    ) -> JobId | None:
        """The job, whose result will reach `on_result` from `poll` or `wait_until`; None when the
        store refuses it now."""
        job = self.attempt(call)
        if job is not None:
            self.watch(job, on_result)
        return job

    def watch(self, job: JobId, on_result: Callable[[JobResult], None]) -> None:
        self._watched[job] = on_result

    def attempt(self, call: Callable[[], _T]) -> _T | None:
        """What `call` returns, or None when the store raises."""
        try:
            return call()
        except STORE_ERRORS as error:
            self.errors += 1
            logger.debug("store_refused error=%s", error)
            return None

    def cancel(self, job: JobId) -> None:
        self.attempt(lambda: self.kv.cancel(job))

    def poll(self) -> None:
        """Hands every finished job's result to whoever waits for it. Results of jobs nobody knows
        are dropped."""
        if not self._watched:
            return
        for result in self.attempt(lambda: self.kv.poll()) or ():
            on_result = self._watched.pop(result.job, None)
            if on_result is not None:
                on_result(result)

    def fileno(self) -> int | None:
        """Readable when results are there; None while the store is away or closed."""
        fileno = self.attempt(lambda: self.kv.fileno())
        return None if fileno is None or fileno < 0 else fileno

    def wait_until(
        self, ready: Callable[[], bool], deadline: float, is_wanted: Callable[[], bool]
    ) -> bool:
        """Polls until `ready()`; False when `deadline` (monotonic) passed first, the store was
        given up on meanwhile, or nobody wants it any more."""
        while not ready():
            left = deadline + GRACE_S - time.monotonic()
            fileno = self.fileno()
            if left <= 0 or fileno is None or self.breaker.is_open or not is_wanted():
                return False
            wait_readable([fileno], min(left, LOOK_S))
            self.poll()
        return True

    def answered(self) -> None:
        """Something that the engine waits for came."""
        self.breaker.on_success()

    def unanswered(self, reason: str) -> None:
        """Something that the engine waited for did not come. Stores are not waited for, so they
        neither open the breaker nor close it."""
        was_open = self.breaker.is_open
        self.breaker.on_failure(time.monotonic())
        if self.breaker.is_open and not was_open:
            logger.warning("store_left_alone reason=%s", reason)

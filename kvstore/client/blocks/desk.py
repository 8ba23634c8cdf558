"""Where one block store's jobs are taken in, counted, and their results laid out for polling."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
from collections import deque
from collections.abc import Callable

from ... import wire
from ...errors import (
    ERRORS_BY_CODE,
    Busy,
    InvalidRequest,
    StoreError,
    StoreTimeout,
    StoreUnavailable,
)
from ...keys import BlockKey, Namespace
from ...opening import namespace_message
from ..connections.channel import Channel, ChannelReply
from ..deadline import Deadline
from .job import Deliver, Job
from .types import JobId, JobResult, JobStatus, PrefixHit

logger = logging.getLogger(__name__)

MAX_OPEN_JOBS = 4096
MAX_PUBLISHED_BLOCKS = 1 << 20
GRACE_SECONDS = 5.0
"""How long a blocking call waits, past its deadline, for a copy to stop."""

_job_ids = itertools.count(1)


def new_job_id() -> JobId:
    return JobId(next(_job_ids))


class JobDesk:
    """Implements `job.Home` and `channel.Listener`. Methods marked io run on the io thread, the
    rest on any."""

    def __init__(self, channel: Channel, namespace: Namespace) -> None:
        self.channel = channel
        self.namespace_id: int | None = None
        self._namespace = namespace
        self._changed = threading.Condition()
        self._refusal: StoreError | None = None
        self._jobs: dict[JobId, Job] = {}  # io
        self._published: set[BlockKey] = set()  # io
        self._num_open = 0
        self._results: deque[JobResult] = deque()
        self._ready = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    # -- jobs -------------------------------------------------------------------------

    def submit(self, job: Job) -> JobId:
        """Raises Busy when MAX_OPEN_JOBS are open."""
        self.check_usable()
        with self._changed:
            if self._num_open >= MAX_OPEN_JOBS:
                raise Busy(f"{self._num_open} jobs are open, the limit; poll and try again")
            self._num_open += 1
        self.channel.post(lambda: self._begin(job))
        return job.id

    def with_job(self, job_id: JobId, act: Callable[[Job], None]) -> None:
        """Acts on the job on the io thread, unless it has finished."""
        self.check_usable()

        def find() -> None:
            job = self._jobs.get(job_id)
            if job is not None:
                act(job)

        self.channel.post(find)

    def deliver(self, result: JobResult) -> None:
        """Lays a result out for `poll`."""
        with self._changed:
            if self._ready >= 0:
                self._results.append(result)
                os.eventfd_write(self._ready, 1)

    def poll(self) -> list[JobResult]:
        self.check_usable()
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._ready)
        results = []
        while self._results:
            results.append(self._results.popleft())
        return results

    def fileno(self) -> int:
        return self._ready

    def ended(self, job: Job) -> None:
        """io"""
        self._jobs.pop(job.id, None)
        with self._changed:
            self._num_open -= 1
            if not self._num_open:
                self._changed.notify_all()

    def _begin(self, job: Job) -> None:
        self._jobs[job.id] = job
        try:
            job.begin()
        except Exception as error:  # the boundary of one job
            logger.exception("job failed to start")
            job.fail(StoreError(f"{type(error).__name__}: {error}"))

    # -- waiting for jobs ---------------------------------------------------------------

    def run(self, make: Callable[[float, Deliver], Job], deadline: Deadline) -> JobResult:
        """The result of the job that `make(deadline_s, deliver)` gives, tried again as long as the
        daemon is away. Raises StoreUnavailable at the deadline, and what a failed lookup or wait
        raises; a load's or store's failed blocks are in the result."""
        while True:
            self.wait_attached(deadline)
            waiter = Waiter()
            left = deadline.check("the call")
            self.submit(make(left, waiter.deliver))
            result = waiter.wait(left)
            if not result.reason.startswith(f"{StoreUnavailable.code}:"):
                return result

    def is_attached(self) -> bool:
        """False while the daemon is away. Raises what it says to the namespace."""
        with self._changed:
            if self._refusal is not None:
                raise self._refusal
            return self.namespace_id is not None

    def wait_attached(self, deadline: Deadline) -> None:
        """Raises StoreUnavailable at the deadline, or what the daemon says to the namespace."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.namespace_id is not None or self._refusal is not None,
                deadline.remaining(),
            )
            if self._refusal is not None:
                raise self._refusal
            if self.namespace_id is None:
                raise StoreUnavailable(f"no store answered within {deadline.timeout_s:g} s")

    # -- telling the daemon -------------------------------------------------------------

    def tell(self, message: wire.Request) -> None:
        """A request whose reply nobody waits for; dropped while the daemon is away."""
        self.check_usable()
        self.channel.post(lambda: self.channel.request(message, _ignore))

    def publish(self, stored: list[BlockKey], removed: list[BlockKey]) -> None:
        self.check_usable()
        self.channel.post(lambda: self._publish(stored, removed))

    def _publish(self, stored: list[BlockKey], removed: list[BlockKey]) -> None:
        room = MAX_PUBLISHED_BLOCKS - len(self._published)
        new = [key for key in dict.fromkeys(stored) if key not in self._published][:room]
        gone = [key for key in dict.fromkeys(removed) if key in self._published]
        self._published.difference_update(gone)
        self._published.update(new)
        self._send_published(new, gone)

    def _send_published(self, stored: list[BlockKey], removed: list[BlockKey]) -> None:
        if self.namespace_id is None:
            return
        for start in range(0, max(len(stored), len(removed)), wire.MAX_KEYS):
            part = slice(start, start + wire.MAX_KEYS)
            message = wire.PublishHbm(
                self.namespace_id, b"".join(stored[part]), b"".join(removed[part])
            )
            self.channel.request(message, _ignore)

    # -- life -------------------------------------------------------------------------

    def open(self, deadline: Deadline) -> None:
        """Waits until the daemon knows the namespace. Raises as `wait_attached`."""
        self.check_usable()
        self.channel.post(lambda: self.channel.add_listener(self))
        self.wait_attached(deadline)

    def attached(self) -> None:
        """io"""
        self.channel.request(namespace_message(self._namespace), self._opened)

    def detached(self) -> None:
        """io"""
        with self._changed:
            self.namespace_id = None
        for job in list(self._jobs.values()):
            job.lost()

    def close(self) -> None:
        """Cancels every job and waits for running copies. Idempotent. In a forked child nothing."""
        if self.channel.is_forked:
            return
        with self._changed:
            if self._ready < 0:
                return
        self.channel.post(self._stop)
        with self._changed:
            self._changed.wait_for(lambda: not self._num_open, GRACE_SECONDS)
        self._release()

    def abandon(self) -> None:
        """Nobody is left to poll or close it: as `close`, soon and without waiting."""
        self.channel.post_quietly(self._end_abandoned)

    def check_usable(self) -> None:
        """Raises ForkedClient in a forked child, InvalidRequest after close."""
        self.channel.check_usable()
        if self._ready < 0:
            raise InvalidRequest("this block store is closed; open it again with client.kv")

    def _end_abandoned(self) -> None:
        """io"""
        self._stop()
        self._release()

    def _release(self) -> None:
        with self._changed:
            if self._ready >= 0:
                os.close(self._ready)
            self._ready = -1
            self._results.clear()

    def _stop(self) -> None:
        self.channel.remove_listener(self)
        for job in list(self._jobs.values()):
            job.stop(JobStatus.CANCELLED, "closed")
        self._send_published([], list(self._published))

    def _opened(self, reply: ChannelReply) -> None:
        message = reply.message
        with self._changed:
            if isinstance(message, wire.NamespaceReply):
                self.namespace_id = message.namespace
            elif isinstance(message, wire.Failure):
                self._refusal = ERRORS_BY_CODE.get(message.code, StoreError)(message.message)
            self._changed.notify_all()
        self._send_published(list(self._published), [])


class Waiter:
    """Takes the one result of a job for a thread that blocks on it."""

    def __init__(self) -> None:
        self._arrived = threading.Event()
        self._result: JobResult | None = None

    def deliver(self, result: JobResult) -> None:
        self._result = result
        self._arrived.set()

    def wait(self, timeout_s: float) -> JobResult:
        """Raises StoreTimeout when the job does not end soon after its own deadline."""
        if not self._arrived.wait(timeout_s + GRACE_SECONDS) or self._result is None:
            raise StoreTimeout(f"a copy still runs {GRACE_SECONDS:g} s after the deadline")
        return self._result


def raise_unless_done(result: JobResult) -> None:
    """A blocking caller's form of a result that is not DONE."""
    if result.status is JobStatus.DONE:
        return
    code, _, message = result.reason.partition(": ")
    error = ERRORS_BY_CODE.get(code, StoreError)
    raise error(message or result.reason)


def hit_of(result: JobResult) -> PrefixHit:
    """A lookup's. Raises like `raise_unless_done`."""
    raise_unless_done(result)
    assert result.hit is not None
    return result.hit


def _ignore(reply: ChannelReply) -> None:
    """The daemon counts what it refused."""

"""A job on the io thread: one start, one terminal result, at the latest at its deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Protocol

from ... import wire
from ...errors import StoreError, StoreTimeout, StoreUnavailable
from ..connections.channel import Channel, ChannelReply
from ..connections.timers import Timer
from .types import JobId, JobResult, JobStatus, PrefixHit

Deliver = Callable[[JobResult], None]


class Home(Protocol):
    """What a job knows of the block store it works for."""

    channel: Channel
    namespace_id: int | None  # None while the daemon is away

    def ended(self, job: Job) -> None: ...


class Job:
    """Runs on the io thread. A subclass starts its first request in `start` and calls `finish` when
    nothing it started can touch the caller's buffers any more."""

    def __init__(self, home: Home, job: JobId, deadline_s: float, deliver: Deliver) -> None:
        self.id = job
        self.finished = False
        self._home = home
        self._deliver = deliver
        self._deadline_s = deadline_s
        self._started = time.monotonic()
        self._timer: Timer | None = None

    @property
    def channel(self) -> Channel:
        return self._home.channel

    def begin(self) -> None:
        if self._home.namespace_id is None:
            self.fail(StoreUnavailable("the store is away"))
            return
        self._timer = self.channel.call_at(self._started + self._deadline_s, self._on_deadline)
        self.start(self._home.namespace_id)

    def start(self, namespace: int) -> None:
        raise NotImplementedError

    def remaining(self) -> float:
        """Seconds to the deadline, never negative."""
        return max(self._started + self._deadline_s - time.monotonic(), 0.0)

    def stop(self, status: JobStatus, reason: str) -> None:
        """The caller or the deadline wants it ended: finish now, or once its copy has stopped."""
        self.finish(status, reason=reason)

    def lost(self) -> None:
        """The connection has ended; requests under way are told by themselves."""

    def all_blocks(self) -> Iterable[int]:
        """Blocks that have failed when the job as a whole has."""
        return ()

    def finish(
        self,
        status: JobStatus,
        *,
        failed_blocks: Iterable[int] | None = None,
        reason: str = "",
        hit: PrefixHit | None = None,
    ) -> None:
        if self.finished:
            return
        self.finished = True
        if self._timer is not None:
            self._timer.cancel()
        if failed_blocks is None:
            failed_blocks = () if status is JobStatus.DONE else self.all_blocks()
        self._home.ended(self)
        failed = tuple(sorted(failed_blocks))
        self._deliver(JobResult(self.id, status, failed, reason, hit, time.monotonic()))

    def fail(self, error: StoreError) -> None:
        self.finish(JobStatus.FAILED, reason=describe(error))

    def expected(self, reply: ChannelReply) -> bool:
        """True when the reply may be used. Otherwise the job has failed, or had ended before."""
        if self.finished:
            self.channel.counters.late_jobs += 1
            return False
        if reply.message is None:
            lost = StoreUnavailable("the connection to the store was lost")
            self.stop(JobStatus.FAILED, describe(lost))
            return False
        if isinstance(reply.message, wire.Failure):
            self.stop(JobStatus.FAILED, f"{reply.message.code}: {reply.message.message}")
            return False
        return True

    def _on_deadline(self) -> None:
        late = StoreTimeout(f"not done within {self._deadline_s:g} s")
        self.stop(JobStatus.TIMED_OUT, describe(late))
        self.channel.give_up_if_silent()


def describe(error: StoreError) -> str:
    """The form of `JobResult.reason`: `code: message`."""
    return f"{error.code}: {error}"

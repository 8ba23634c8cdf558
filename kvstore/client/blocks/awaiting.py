"""Waiting for jobs in an event loop: the asyncio form of `JobDesk.run` and `Waiter`."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from ... import wire
from ...errors import StoreError, StoreTimeout, StoreUnavailable
from ..deadline import Deadline
from .block_jobs import Make
from .desk import GRACE_SECONDS, JobDesk
from .types import JobId, JobResult, JobStatus

ATTACH_POLL_SECONDS = 0.02
"""Between two looks for a daemon that is away."""


class Arrival:
    """Takes the one result of a job for the task that awaits it. Made in the task's loop."""

    def __init__(self, desk: JobDesk) -> None:
        self._desk = desk
        self._loop = asyncio.get_running_loop()
        self._result: asyncio.Future[JobResult] = self._loop.create_future()

    def deliver(self, result: JobResult) -> None:
        """On the io thread."""
        with suppress(RuntimeError):  # the loop was closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._result.set_result, result)

    async def result(self, job: JobId, timeout_s: float) -> JobResult:
        """When the task is cancelled, so is the job, and its end is awaited: the caller's buffers
        are then free. Raises StoreTimeout when the job does not end soon after its own deadline."""
        try:
            await asyncio.wait({self._result}, timeout=timeout_s + GRACE_SECONDS)
        except asyncio.CancelledError:
            with suppress(StoreError):  # closed meanwhile
                await self._cancel(job)
            raise
        if not self._result.done():
            raise StoreTimeout(f"a copy still runs {GRACE_SECONDS:g} s after the deadline")
        return self._result.result()

    async def _cancel(self, job: JobId) -> None:
        self._desk.with_job(job, lambda known: known.stop(JobStatus.CANCELLED, "cancelled"))
        await asyncio.wait({self._result}, timeout=GRACE_SECONDS)
        hit = self._result.result().hit if self._result.done() else None
        if hit is not None and hit.ticket.id:
            self._desk.tell(wire.Unpin(hit.ticket.id))


async def run(desk: JobDesk, make: Make, deadline: Deadline) -> JobResult:
    """As `JobDesk.run`, without blocking the loop."""
    while True:
        await wait_attached(desk, deadline)
        left = deadline.check("the call")
        arrival = Arrival(desk)
        result = await arrival.result(desk.submit(make(left, arrival.deliver)), left)
        if not result.reason.startswith(f"{StoreUnavailable.code}:"):
            return result


async def wait_attached(desk: JobDesk, deadline: Deadline) -> None:
    """As `JobDesk.wait_attached`."""
    while not desk.is_attached():
        if not deadline.remaining():
            raise StoreUnavailable(f"no store answered within {deadline.timeout_s:g} s")
        await asyncio.sleep(min(ATTACH_POLL_SECONDS, deadline.remaining()))

"""One attempt at a job under one plan."""

from __future__ import annotations

from typing import Protocol

from ..cluster.workers import Worker
from ..upstream import Chunk, GenerationBody
from .job import Job
from .legs import Leg, Legs, Part


class Run(Protocol):
    """Chunks as if from one worker: tokens, then one chunk with the usage of all of it."""

    @property
    def worker(self) -> Worker:
        """Where the answer is generated: all of it, or from token 2 on."""

    @property
    def prefill_worker(self) -> Worker | None:
        """Where the prompt is computed, if elsewhere."""

    async def next(self) -> Chunk | None:
        """The next chunk, None after the last. Begins the run on its first call. Raises
        LegFailed."""

    def close(self) -> None:
        """Afterwards no worker does or counts anything for this run."""


class Colocated:
    """One worker does all."""

    prefill_worker = None

    def __init__(
        self, legs: Legs, job: Job, worker: Worker, body: GenerationBody, cached_tokens: int
    ) -> None:
        self.worker = worker
        self._legs = legs
        self._job = job
        self._body = body
        self._cached_tokens = cached_tokens
        self._leg: Leg | None = None

    async def next(self) -> Chunk | None:
        if self._leg is None:
            self._leg = await self._legs.open(
                self._job, self.worker, Part.WHOLE, self._body, cached_tokens=self._cached_tokens
            )
        return await self._leg.next()

    def close(self) -> None:
        if self._leg is not None:
            self._leg.close()

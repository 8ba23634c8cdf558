"""Asks the store what it has of each new prompt, and keeps the tickets until they are used."""

from __future__ import annotations

import time
from dataclasses import dataclass

from moontide.kvstore import JobId, JobResult, JobStatus, Ticket

from .sequence import Sequence
from .store_jobs import GRACE_S, JobDesk

_NEVER = float("inf")


@dataclass(slots=True)
class _Held:
    ticket: Ticket
    renew_at: float


class Lookups:
    """Every sequence gets exactly one answer a lookup, at its deadline at the latest. While the
    breaker is open nobody waits: a lookup then only probes whether the store is back."""

    def __init__(self, desk: JobDesk, *, timeout_s: float, pin_s: float) -> None:
        self.unanswered = 0
        self._desk = desk
        self._timeout_s = timeout_s
        self._pin_s = pin_s
        self._pending: dict[Sequence, tuple[JobId, float]] = {}  # job, deadline
        self._tickets: dict[Sequence, _Held] = {}
        self._answers: list[tuple[Sequence, int | None]] = []

    @property
    def num_pending(self) -> int:
        return len(self._pending)

    @property
    def num_tickets(self) -> int:
        return len(self._tickets)

    def ask(self, sequence: Sequence) -> None:
        """Any ticket from before is released."""
        self.forget(sequence)
        now = time.monotonic()
        must_wait = not self._desk.breaker.is_open
        job = None
        if self._desk.breaker.allows(now):
            job = self._desk.submit(
                lambda: self._desk.kv.submit_lookup(
                    sequence.token_ids, pin_s=self._pin_s, deadline_s=self._timeout_s
                ),
                lambda result: self._answered(sequence, result),
            )
            if job is None:
                self._desk.unanswered("a lookup was refused")
        if job is not None and must_wait:
            self._pending[sequence] = (job, now + self._timeout_s + GRACE_S)
        else:
            self._miss(sequence)

    def answers(self) -> list[tuple[Sequence, int | None]]:
        """Answers since the last call: leading blocks found, or None when the store did not say.
        Renews the tickets of sequences that still wait."""
        now = time.monotonic()
        for sequence, (job, deadline) in list(self._pending.items()):
            if deadline <= now:
                del self._pending[sequence]
                self._desk.cancel(job)
                self._desk.unanswered("a lookup had no result at its deadline")
                self._miss(sequence)
        for held in self._tickets.values():
            if held.renew_at <= now:
                held.renew_at = now + self._pin_s / 3
                self._renew(held.ticket)
        answers, self._answers = self._answers, []
        return answers

    def seconds_to_deadline(self) -> float:
        if self._answers:
            return 0.0
        deadlines = [deadline for _, deadline in self._pending.values()]
        renewals = [held.renew_at for held in self._tickets.values()]
        return max(0.0, min(deadlines + renewals, default=_NEVER) - time.monotonic())

    def ticket(self, sequence: Sequence) -> Ticket | None:
        held = self._tickets.get(sequence)
        return held.ticket if held else None

    def forget(self, sequence: Sequence) -> None:
        """Ends its lookup or releases its ticket."""
        pending = self._pending.pop(sequence, None)
        if pending is not None:
            self._desk.cancel(pending[0])
        held = self._tickets.pop(sequence, None)
        if held is not None:
            self._release(held.ticket)

    def _answered(self, sequence: Sequence, result: JobResult) -> None:
        """A late answer, or one for a sequence that is gone, only gives its ticket back."""
        pending = self._pending.get(sequence)
        wanted = pending is not None and pending[0] == result.job
        if wanted:
            del self._pending[sequence]
        hit = result.hit if result.status is JobStatus.DONE else None
        if hit is not None:
            self._desk.answered()
        elif result.status is JobStatus.TIMED_OUT:
            self._desk.unanswered(result.reason)
        if hit is not None and hit.blocks:
            if wanted:
                self._tickets[sequence] = _Held(hit.ticket, time.monotonic() + self._pin_s / 3)
            else:
                self._release(hit.ticket)
        if wanted and hit is not None:
            self._answers.append((sequence, len(hit.blocks)))
        elif wanted:
            self._miss(sequence)

    def _miss(self, sequence: Sequence) -> None:
        self.unanswered += 1
        self._answers.append((sequence, None))

    def _renew(self, ticket: Ticket) -> None:
        self._desk.attempt(lambda: self._desk.kv.renew(ticket, ttl_s=self._pin_s))

    def _release(self, ticket: Ticket) -> None:
        self._desk.attempt(lambda: self._desk.kv.release(ticket))

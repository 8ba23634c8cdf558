"""Asks the store what it has of each new prompt, or to bring a hand-off's blocks, and keeps the
tickets until they are used."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from moontide.kvstore import JobId, JobResult, JobStatus, PrefixHit, Ticket

from .sequence import Found, ReceiveHandoff, Sequence, Source
from .store_jobs import GRACE_S, JobDesk

_NEVER = float("inf")


Answer = tuple[Sequence, Found | None]
"""None: the store did not say."""


@dataclass(slots=True)
class _Held:
    ticket: Ticket
    renew_at: float


@dataclass(slots=True)
class _Pending:
    job: JobId
    deadline: float
    first_block: int


class Lookups:
    """Every sequence gets exactly one answer a question, at its deadline at the latest. While the
    breaker is open nobody waits: a lookup then only probes whether the store is back."""

    def __init__(self, desk: JobDesk, *, pin_s: float) -> None:
        self.unanswered = 0
        self._desk = desk
        self._pin_s = pin_s
        self._pending: dict[Sequence, _Pending] = {}
        self._tickets: dict[Sequence, _Held] = {}
        self._answers: list[Answer] = []

    @property
    def num_pending(self) -> int:
        return len(self._pending)

    @property
    def num_tickets(self) -> int:
        return len(self._tickets)

    def ask(self, sequence: Sequence, timeout_s: float) -> None:
        """What the store has of it. Any ticket from before is released."""
        self._submit(
            sequence,
            lambda: self._desk.kv.submit_lookup(
                sequence.token_ids, pin_s=self._pin_s, deadline_s=timeout_s
            ),
            first_block=0,
            timeout_s=timeout_s,
        )

    def fetch(self, sequence: Sequence, blocks: range, timeout_s: float) -> None:
        """Has `blocks` of a hand-off brought here, up to the one that is not full, within
        `timeout_s`. The answer comes once all have a place, which can be when the last of them
        begins to be computed."""
        handoff = sequence.handoff
        assert isinstance(handoff, ReceiveHandoff)
        self._submit(
            sequence,
            lambda: self._desk.kv.submit_fetch(
                sequence.token_ids,
                source=handoff.store_instance,
                request_block=handoff.key if blocks.stop > len(sequence.keys) else None,
                first_block=blocks.start,
                pin_s=self._pin_s,
                deadline_s=timeout_s,
            ),
            first_block=blocks.start,
            timeout_s=timeout_s,
        )

    def narrow(self, sequence: Sequence, num_tokens: int) -> None:
        """From now on only blocks of the first tokens are held: the others need not come."""
        held = self._tickets[sequence]
        self._desk.submit(
            lambda: self._desk.kv.submit_lookup(
                sequence.token_ids[:num_tokens],
                pin_s=self._pin_s,
                held=held.ticket,
                deadline_s=self._pin_s,
            ),
            lambda result: self._narrowed(sequence, held, result, num_tokens),
        )

    def hurry(self, sequence: Sequence, timeout_s: float) -> None:
        """From now on that is the limit of its question, if it has one."""
        pending = self._pending.get(sequence)
        if pending is not None:
            pending.deadline = min(pending.deadline, time.monotonic() + timeout_s)

    def answers(self) -> list[Answer]:
        """Answers since the last call."""
        now = time.monotonic()
        for sequence, pending in list(self._pending.items()):
            if pending.deadline <= now:
                del self._pending[sequence]
                self._desk.cancel(pending.job)
                self._unanswered(sequence, "a lookup had no result at its deadline")
                self._miss(sequence)
        answers, self._answers = self._answers, []
        return answers

    def renew_due(self) -> None:
        """Keeps tickets alive; to be called a few times within `pin_s`, also during a step."""
        now = time.monotonic()
        for held in self._tickets.values():
            if held.renew_at <= now:
                held.renew_at = now + self._pin_s / 3
                self._renew(held.ticket)

    def seconds_to_deadline(self) -> float:
        if self._answers:
            return 0.0
        deadlines = [pending.deadline for pending in self._pending.values()]
        renewals = [held.renew_at for held in self._tickets.values()]
        return max(0.0, min(deadlines + renewals, default=_NEVER) - time.monotonic())

    def ticket(self, sequence: Sequence) -> Ticket | None:
        held = self._tickets.get(sequence)
        return held.ticket if held else None

    def forget(self, sequence: Sequence) -> None:
        """Ends its lookup or releases its ticket."""
        pending = self._pending.pop(sequence, None)
        if pending is not None:
            self._desk.cancel(pending.job)
        held = self._tickets.pop(sequence, None)
        if held is not None:
            self._release(held.ticket)

    def _submit(
        self,
        sequence: Sequence,
        call: Callable[[], JobId],
        *,
        first_block: int,
        timeout_s: float,
    ) -> None:
        self.forget(sequence)
        now = time.monotonic()
        must_wait = not self._desk.breaker.is_open
        job = None
        if self._desk.breaker.allows(now):
            job = self._desk.submit(call, lambda result: self._answered(sequence, result))
            if job is None:
                self._desk.unanswered("a lookup was refused")
        if job is not None and must_wait:
            self._pending[sequence] = _Pending(job, now + timeout_s + GRACE_S, first_block)
        else:
            self._miss(sequence)

    def _answered(self, sequence: Sequence, result: JobResult) -> None:
        """A late answer, or one for a sequence that is gone, only gives its ticket back."""
        pending = self._pending.get(sequence)
        hit = result.hit if result.status is JobStatus.DONE else None
        if hit is not None:
            self._desk.answered()
        elif result.status is JobStatus.TIMED_OUT:
            self._unanswered(sequence, result.reason)
        if pending is None or pending.job != result.job:
            if hit is not None and hit.blocks:
                self._release(hit.ticket)
            return
        del self._pending[sequence]
        if hit is None:
            self._miss(sequence)
            return
        if hit.blocks:
            self._tickets[sequence] = _Held(hit.ticket, time.monotonic() + self._pin_s / 3)
        self._answers.append((sequence, _found(hit, pending.first_block)))

    def _narrowed(
        self, sequence: Sequence, held: _Held, result: JobResult, num_tokens: int
    ) -> None:
        """The new ticket's pin stands for the old one's; loads go on with the old one's places."""
        hit = result.hit if result.status is JobStatus.DONE else None
        if hit is None or not hit.blocks:
            return
        over = hit.ticket
        if self._tickets.get(sequence) is held and hit.num_tokens == num_tokens:
            over = replace(hit.ticket, id=held.ticket.id)
            held.ticket = replace(held.ticket, id=hit.ticket.id)
        self._release(over)

    def _unanswered(self, sequence: Sequence, reason: str) -> None:
        """A fetch without an answer says more of the other store than of this one."""
        if not sequence.is_received:
            self._desk.unanswered(reason)

    def _miss(self, sequence: Sequence) -> None:
        self.unanswered += 1
        self._answers.append((sequence, None))

    def _renew(self, ticket: Ticket) -> None:
        self._desk.attempt(lambda: self._desk.kv.renew(ticket, ttl_s=self._pin_s))

    def _release(self, ticket: Ticket) -> None:
        self._desk.attempt(lambda: self._desk.kv.release(ticket))


def _found(hit: PrefixHit, first_block: int) -> Found:
    by_block = tuple(map(Source, hit.tiers, hit.transports, hit.peers))
    return Found(first_block, by_block, time.monotonic())

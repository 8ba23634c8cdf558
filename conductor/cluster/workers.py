"""What the Conductor knows of one worker: readiness, open requests, measured speeds. No I/O, no
clock: `now` is monotonic seconds."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, replace

from moontide.kvstore.membership import WorkerRecord

from ..routing import Exclusion, Speeds

FAILURES_UNTIL_UNREACHABLE = 2
LOST_SECONDS = 20.0
"""A worker that neither answered a check nor delivered a token for so long is lost."""
SUSPECT_SECONDS = 5.0
"""The same, where others can take over what it has: they need not wait for certainty."""
MIN_MEASURED_TOKENS = 32
_WEIGHT = 0.3  # of the newest measurement


class Health(enum.StrEnum):
    STARTING = "starting"  # registered, not yet checked
    READY = "ready"
    NOT_READY = "not_ready"  # answers, takes no work
    UNREACHABLE = "unreachable"


class Worker:
    """One life of one worker: a restart under the same id is another object."""

    def __init__(self, record: WorkerRecord, now: float) -> None:
        self.record = record
        self.health = Health.STARTING
        self.detail = "not checked yet"
        self.speeds = Speeds()
        self.is_gone = False  # left the membership: takes nothing new
        self.is_refused = False  # what it tells of its model contradicts its record
        self.model_problem = ""
        self._failures = 0
        self.last_token = now  # when it last gave anybody one
        self._last_answer = now  # to a check
        self._open: set[OpenRequest] = set()

    # -- health -----------------------------------------------------------------------

    def answered(self, ready: bool, detail: str, now: float) -> None:
        """A check was answered."""
        self._failures = 0
        self._last_answer = now
        self.health = Health.READY if ready else Health.NOT_READY
        self.detail = detail

    def failed(self, detail: str) -> None:
        """A check was not answered in time."""
        self._failures += 1
        self.detail = detail
        if self._failures >= FAILURES_UNTIL_UNREACHABLE:
            self.health = Health.UNREACHABLE

    def refused(self, detail: str) -> None:
        """A connection was refused or broke: nothing is sent there until a check is answered."""
        self._failures = FAILURES_UNTIL_UNREACHABLE
        self.health = Health.UNREACHABLE
        self.detail = detail

    def is_lost(self, now: float) -> bool:
        """Requests there have nothing to wait for. One that left the membership may only be
        finishing what it has, so it is judged like any other."""
        return self._is_silent(now, LOST_SECONDS)

    def is_suspect(self, now: float) -> bool:
        """Requests there had better go elsewhere."""
        return self._is_silent(now, SUSPECT_SECONDS)

    def _is_silent(self, now: float, seconds: float) -> bool:
        silent_for = now - max(self._last_answer, self.last_token)
        return self.health is Health.UNREACHABLE and silent_for > seconds

    # -- requests ---------------------------------------------------------------------

    @property
    def open_requests(self) -> int:
        return len(self._open)

    @property
    def pending_tokens(self) -> int:
        """Prompt tokens that open requests still have to prefill, as far as predicted."""
        return sum(request.pending_tokens for request in self._open)

    def open(self, *, prompt_tokens: int, cached_tokens: int, now: float) -> OpenRequest:
        """A request is sent there; the caller closes it, however it ends."""
        request = OpenRequest(
            prompt_tokens=prompt_tokens,
            pending_tokens=prompt_tokens - cached_tokens,
            was_alone=self.pending_tokens == 0,
            opened_at=now,
            on_token=self._took_token,
            on_close=self._closed,
        )
        self._open.add(request)
        return request

    def exclusion(self, *, max_queue: int, token_seconds_limit: float | None) -> Exclusion | None:
        """Why the worker takes no further request now, if it does not."""
        if self.is_gone or self.health in (Health.STARTING, Health.UNREACHABLE):
            return Exclusion.UNREACHABLE
        if self.health is Health.NOT_READY:
            return Exclusion.NOT_READY
        if self.open_requests >= self.record.max_running + max_queue:
            return Exclusion.FULL
        slow = token_seconds_limit is not None and self.speeds.token_seconds > token_seconds_limit
        return Exclusion.SLOW_TOKENS if slow and self._open else None

    def _took_token(self, gap_seconds: float, now: float) -> None:
        self.last_token = now
        if gap_seconds > 0:
            mean = _mean(self.speeds.token_seconds or None, gap_seconds)
            self.speeds = replace(self.speeds, token_seconds=mean)

    def _closed(self, request: OpenRequest, outcome: Outcome | None) -> None:
        self._open.discard(request)
        if not self._open:
            self.speeds = replace(self.speeds, token_seconds=0.0)
        if outcome is None:
            return
        self.speeds = replace(
            self.speeds,
            request_seconds=_mean(self.speeds.request_seconds, outcome.stream_seconds),
        )
        if request.was_alone and outcome.computed_tokens >= MIN_MEASURED_TOKENS:
            speed = outcome.computed_tokens / max(outcome.ttft_seconds, 1e-6)
            mean = _mean(self.speeds.prefill_tokens_per_s, speed)
            self.speeds = replace(self.speeds, prefill_tokens_per_s=mean)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request that ended well went."""

    computed_tokens: int  # prompt tokens the worker had to prefill
    ttft_seconds: float
    stream_seconds: float  # first token to last


@dataclass(slots=True, eq=False, kw_only=True)
class OpenRequest:
    """One request at one worker, from being sent until `close`."""

    prompt_tokens: int
    pending_tokens: int
    was_alone: bool  # nothing else waited for its prefill there when it came
    opened_at: float
    on_token: Callable[[float, float], None]
    on_close: Callable[[OpenRequest, Outcome | None], None]
    first_token_at: float | None = None
    last_token_at: float = 0.0
    is_closed: bool = False

    def tokens(self, count: int, now: float) -> None:
        """`count` tokens arrived together."""
        gap = 0.0
        if self.first_token_at is None:
            self.first_token_at = now
            self.pending_tokens = 0
        elif count:
            gap = (now - self.last_token_at) / count
        self.last_token_at = now
        self.on_token(gap, now)

    def close(self, now: float, *, cached_tokens: int | None = None) -> None:
        """`cached_tokens` is what the worker reused, when it told: only then is anything learned.
        Further calls do nothing."""
        if self.is_closed:
            return
        self.is_closed = True
        outcome = None
        if cached_tokens is not None and self.first_token_at is not None:
            outcome = Outcome(
                computed_tokens=self.prompt_tokens - cached_tokens,
                ttft_seconds=self.first_token_at - self.opened_at,
                stream_seconds=now - self.first_token_at,
            )
        self.on_close(self, outcome)


def _mean(before: float | None, newest: float) -> float:
    return newest if before is None else before + _WEIGHT * (newest - before)

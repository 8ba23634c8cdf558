"""Which worker takes a request: a pure function over a frozen snapshot.

    estimated TTFT = queue + load of the cached tokens + prefill of the others

    queue    tokens that requests before this one still have to prefill, over the worker's prefill
             speed, and, when its batch is full, the share of a request that must end first
    load     tokens cached in a tier that must be copied first, over that tier's load speed
    prefill  tokens nobody has, over the prefill speed

The least estimate wins, so a request leaves the worker with the longest prefix once waiting there
costs more than recomputing elsewhere. A worker that is not ready, over its limit or too slow is
left out before anything is computed: the decision is the one made without it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


class Exclusion(enum.StrEnum):
    """Why a worker was left out."""

    UNREACHABLE = "unreachable"
    NOT_READY = "not_ready"  # answers, but takes no work: starting or draining
    MISMATCH = "mismatch"  # tokenizer, namespace or role differs from what the request needs
    FULL = "full"  # as many open requests as it may have
    SLOW_TOKENS = "slow_tokens"  # its time between tokens already breaks the objective
    TRIED = "tried"  # this request was there and came back


class Reason(enum.StrEnum):
    """Why the chosen worker was chosen."""

    ONLY = "only"  # no other could take it
    PREFIX = "prefix"  # none holds more of the prompt
    SPILL = "spill"  # another holds more, but waiting there costs more than it saves
    LOAD = "load"  # none holds anything: least estimated wait


@dataclass(frozen=True, slots=True)
class Speeds:
    """What a worker was measured to do; defaults stand until it was."""

    prefill_tokens_per_s: float = 500.0
    load_tokens_per_s: float = 10_000.0  # from dram
    request_seconds: float = 2.0  # first token to last
    token_seconds: float = 0.0  # between tokens of one request; 0: not measured


@dataclass(frozen=True, slots=True)
class Candidate:
    """One worker as the decision sees it."""

    id: str
    excluded: Exclusion | None
    open_requests: int
    max_running: int
    pending_tokens: int  # prompt tokens not yet computed of its open requests
    cached: Mapping[str, int]  # tier → leading prompt tokens held there, for this request
    speeds: Speeds = Speeds()

    @property
    def cached_tokens(self) -> int:
        return sum(self.cached.values())


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a decision depends on."""

    prompt_tokens: int
    candidates: tuple[Candidate, ...]
    ttft_limit_s: float | None = None


@dataclass(frozen=True, slots=True)
class Estimate:
    """The terms of one worker's estimated TTFT."""

    worker: str
    cached_tokens: int
    queue_seconds: float
    load_seconds: float
    prefill_seconds: float

    @property
    def ttft_seconds(self) -> float:
        return self.queue_seconds + self.load_seconds + self.prefill_seconds


@dataclass(frozen=True, slots=True)
class Choice:
    """The worker to use; `estimates` has every usable one, best first."""

    worker: str
    reason: Reason
    cached_tokens: int
    estimates: tuple[Estimate, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Nobody may take the request now. `overloaded`: somebody could, later, as far as is known."""

    overloaded: bool
    message: str
    retry_after_s: float
    estimates: tuple[Estimate, ...] = ()


def route(snapshot: Snapshot) -> Choice | Refusal:
    """Equal estimates go to the worker with fewer open requests, then by name."""
    usable = [c for c in snapshot.candidates if c.excluded is None]
    if not usable:
        return _nobody(snapshot.candidates)
    by_id = {c.id: c for c in usable}
    estimates = tuple(
        sorted(
            (estimate(c, snapshot.prompt_tokens) for c in usable),
            key=lambda e: (e.ttft_seconds, by_id[e.worker].open_requests, e.worker),
        )
    )
    best = estimates[0]
    limit = snapshot.ttft_limit_s
    if limit is not None and best.ttft_seconds > limit:
        return Refusal(
            overloaded=True,
            message=f"the first token would take about {best.ttft_seconds:.2f} s at worker "
            f"{best.worker}, the best of {len(usable)}; the limit is {limit:g} s",
            retry_after_s=max(1.0, best.ttft_seconds - limit),
            estimates=estimates,
        )
    return Choice(best.worker, _reason(estimates), best.cached_tokens, estimates)


def estimate(candidate: Candidate, prompt_tokens: int) -> Estimate:
    """At least one token is always computed, however much is cached."""
    speeds = candidate.speeds
    cached = min(candidate.cached_tokens, max(prompt_tokens - 1, 0))
    copied = min(cached, sum(n for tier, n in candidate.cached.items() if tier != "hbm"))
    waiting = max(0, candidate.open_requests + 1 - candidate.max_running)
    turns = waiting / max(candidate.max_running, 1)
    return Estimate(
        worker=candidate.id,
        cached_tokens=cached,
        queue_seconds=candidate.pending_tokens / speeds.prefill_tokens_per_s
        + turns * speeds.request_seconds,
        load_seconds=copied / speeds.load_tokens_per_s,
        prefill_seconds=(prompt_tokens - cached) / speeds.prefill_tokens_per_s,
    )


def _reason(estimates: Sequence[Estimate]) -> Reason:
    longest = max(e.cached_tokens for e in estimates)
    if len(estimates) == 1:
        return Reason.ONLY
    if longest == 0:
        return Reason.LOAD
    return Reason.PREFIX if estimates[0].cached_tokens == longest else Reason.SPILL


_PASSING = frozenset({Exclusion.FULL, Exclusion.SLOW_TOKENS})


def _nobody(candidates: Sequence[Candidate]) -> Refusal:
    counts: dict[str, int] = {}
    for candidate in candidates:
        if candidate.excluded is not None:
            counts[candidate.excluded] = counts.get(candidate.excluded, 0) + 1
    told = ", ".join(f"{count} {why}" for why, count in sorted(counts.items()))
    return Refusal(
        overloaded=any(c.excluded in _PASSING for c in candidates),
        message=f"no worker can take the request ({told or 'none is registered'})",
        retry_after_s=1.0,
    )

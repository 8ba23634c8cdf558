"""The decision: the plan with the least estimated TTFT.

A request leaves the worker with the longest prefix once waiting there costs more than recomputing
elsewhere. A worker that is not ready, over its limit or too slow is left out before anything is
computed: the decision is the one made without it.

    role      is offered for                            takes anything when
    both      colocated plans                           –
    prefill   the prefill of a split; one-token answers no worker of the needed role is usable
    decode    the decode of a split; resumed answers    no worker of the needed role is usable
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .estimate import colocated, split
from .types import Candidate, Choice, Estimate, Exclusion, Reason, Refusal, Role, Snapshot


def route(snapshot: Snapshot) -> Choice | Refusal:
    """The plan for a new request. Equal estimates go to the worker with fewer open requests, then
    by name."""
    usable = snapshot.usable
    if not usable:
        return _nobody(snapshot.candidates)
    plans = _offered(snapshot, usable)
    estimates = _best_first(plans or _colocated(snapshot, usable), usable)
    best, limit = estimates[0], snapshot.ttft_limit_s
    if limit is not None and best.ttft_seconds > limit:
        return Refusal(
            overloaded=True,
            message=f"the first token would take about {best.ttft_seconds:.2f} s at worker "
            f"{best.prefill_worker or best.worker}, the best of {len(estimates)}; the limit is "
            f"{limit:g} s",
            retry_after_s=max(1.0, best.ttft_seconds - limit),
            estimates=estimates,
        )
    return Choice(best, _reason(estimates) if plans else Reason.FALLBACK, estimates)


def route_resumed(snapshot: Snapshot) -> Choice | Refusal:
    """Who goes on with an answer whose worker was lost: one worker, which finds the prompt and the
    answer so far in the pool. Decode workers first: that is what they are for."""
    usable = snapshot.usable
    if not usable:
        return _nobody(snapshot.candidates)
    decoding = [c for c in usable if c.role is not Role.PREFILL]
    estimates = _best_first(_colocated(snapshot, decoding or usable), usable)
    return Choice(estimates[0], Reason.RESUME, estimates)


def route_to(snapshot: Snapshot, worker: str) -> Choice | Refusal:
    """Colocated at `worker`, or nowhere."""
    named = [c for c in snapshot.candidates if c.id == worker]
    if not any(c.excluded is None for c in named):
        return _nobody(named)
    estimates = tuple(_colocated(snapshot, named))
    return Choice(estimates[0], Reason.FORCED, estimates)


def pick_decode(candidates: Iterable[Candidate]) -> Candidate | None:
    """The decode worker of a split: the least loaded one, as that is where tokens come fastest.
    Among equals the one that holds more of the prompt, then the faster one, then by name."""
    able = [c for c in candidates if c.excluded is None and c.role is Role.DECODE and c.store]
    return min(
        able,
        key=lambda c: (
            c.open_requests / max(c.max_running, 1),
            -c.own_tokens,
            c.speeds.token_seconds,
            c.id,
        ),
        default=None,
    )


def _offered(snapshot: Snapshot, usable: Sequence[Candidate]) -> list[Estimate]:
    """Every plan in which workers do what their roles say."""
    answers_alone = {Role.BOTH}
    if snapshot.max_tokens == 1:  # nothing is left to decode
        answers_alone.add(Role.PREFILL)
    plans = _colocated(snapshot, [c for c in usable if c.role in answers_alone])
    decode = pick_decode(usable)
    if decode is not None and snapshot.max_tokens > 1:
        plans += [
            split(c, decode, snapshot.prompt_tokens)
            for c in usable
            if c.role is Role.PREFILL and c.store
        ]
    return plans


def _colocated(snapshot: Snapshot, candidates: Iterable[Candidate]) -> list[Estimate]:
    return [colocated(c, snapshot.prompt_tokens) for c in candidates]


def _best_first(
    estimates: Iterable[Estimate], candidates: Iterable[Candidate]
) -> tuple[Estimate, ...]:
    open_requests = {c.id: c.open_requests for c in candidates}

    def order(estimate: Estimate) -> tuple[float, int, str]:
        computes = estimate.prefill_worker or estimate.worker
        return estimate.ttft_seconds, open_requests[computes], computes

    return tuple(sorted(estimates, key=order))


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

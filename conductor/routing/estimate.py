"""How long until the first token, under a plan.

estimated TTFT = queue + load of the cached tokens + prefill of the others + hand-off

queue     tokens that requests before this one still have to prefill, over the worker's prefill
          speed, and, when its batch is full, the share of a request that must end first
load      tokens cached in a tier that must be copied first, over that tier's load speed
prefill   tokens nobody has, over the prefill speed
hand-off  of a split only: the wait for pages at the decode worker, two round trips, and what
          the prefill does not hide of the transfer. That last part delays the second token;
          it counts like a delay of the first.
"""

from __future__ import annotations

from .types import Candidate, Estimate

HANDOFF_SECONDS = 0.01
"""Reserving at one worker, asking the other, passing the first token on."""


def colocated(candidate: Candidate, prompt_tokens: int) -> Estimate:
    """At least one token is always computed, however much is cached."""
    return Estimate(
        worker=candidate.id,
        prefill_worker=None,
        cached=candidate.cached,
        cached_tokens=_cached(candidate, prompt_tokens),
        queue_seconds=_prefill_queue(candidate) + _batch_queue(candidate),
        load_seconds=_load(candidate, prompt_tokens),
        prefill_seconds=_prefill(candidate, prompt_tokens),
        handoff_seconds=0.0,
    )


def split(prefill: Candidate, decode: Candidate, prompt_tokens: int) -> Estimate:
    """Requests leave the prefill worker with their first token, so only its prefills queue."""
    load, compute = _load(prefill, prompt_tokens), _prefill(prefill, prompt_tokens)
    speeds = decode.speeds
    same_store = prefill.store == decode.store
    speed = speeds.dram_tokens_per_s if same_store else speeds.remote_tokens_per_s
    transfer = max(0, prompt_tokens - decode.own_tokens) / speed
    return Estimate(
        worker=decode.id,
        prefill_worker=prefill.id,
        cached=prefill.cached,
        cached_tokens=_cached(prefill, prompt_tokens),
        queue_seconds=_prefill_queue(prefill),
        load_seconds=load,
        prefill_seconds=compute,
        handoff_seconds=(
            HANDOFF_SECONDS + _batch_queue(decode) + max(0.0, transfer - load - compute)
        ),
    )


def _cached(candidate: Candidate, prompt_tokens: int) -> int:
    return min(candidate.cached_tokens, max(prompt_tokens - 1, 0))


def _load(candidate: Candidate, prompt_tokens: int) -> float:
    return candidate.speeds.load_seconds(candidate.cached, _cached(candidate, prompt_tokens))


def _prefill(candidate: Candidate, prompt_tokens: int) -> float:
    computed = prompt_tokens - _cached(candidate, prompt_tokens)
    return computed / candidate.speeds.prefill_tokens_per_s


def _prefill_queue(candidate: Candidate) -> float:
    return candidate.pending_tokens / candidate.speeds.prefill_tokens_per_s


def _batch_queue(candidate: Candidate) -> float:
    waiting = max(0, candidate.open_requests + 1 - candidate.max_running)
    return waiting / max(candidate.max_running, 1) * candidate.speeds.request_seconds

"""A round: requests under load, a fault, and what has to be true afterwards."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from ..cluster_process import Answer, Refused, RunningCluster, Stream, prompt

REQUESTS = 4
PROMPT_TOKENS = 130
OUTPUT_TOKENS = 250
PATIENCE_SECONDS = 4
PATIENT_CONDUCTOR = {
    "MOONTIDE_CONDUCTOR_FIRST_TOKEN_TIMEOUT": str(PATIENCE_SECONDS),
    "MOONTIDE_CONDUCTOR_TOKEN_TIMEOUT": str(PATIENCE_SECONDS),
}
DEADLINE_SECONDS = 25.0
"""Of a request: it may lose its prefill worker, then its decode worker, each after the Conductor's
patience."""


LOST = frozenset({"worker_lost", "worker_failed", "overloaded"})


@dataclass(frozen=True, slots=True)
class Fault:
    """Entered when some request has so many tokens, left when all requests have ended. `errors`:
    codes of those that are honest under it; elsewhere somebody is always left to answer."""

    begin: Callable[[RunningCluster, Load, random.Random], contextlib.AbstractContextManager[None]]
    after_tokens: range
    errors: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Outcome:
    answer: Answer | None
    error: Exception | None
    tokens: list[int]
    seconds: float


def run_round(cluster: RunningCluster, fault: Fault, rng: random.Random) -> None:
    """Every request ends with the right text or an honest error within its deadline; afterwards all
    are answered, and nothing is held anywhere."""
    prompts = [prompt(PROMPT_TOKENS, rng.randrange(1 << 30)) for _ in range(REQUESTS)]
    references = [cluster.complete(p, OUTPUT_TOKENS) for p in prompts]
    cluster.empty_engine_caches()
    cluster.empty_stores()
    load = Load(cluster, prompts)
    load.await_tokens(rng.choice(fault.after_tokens))
    with fault.begin(cluster, load, rng):
        outcomes = load.outcomes()
    for outcome, reference in zip(outcomes, references, strict=True):
        check(outcome, reference, fault)
    cluster.await_joined()
    cluster.await_rest()
    again = [cluster.complete(p, OUTPUT_TOKENS).shown for p in prompts]
    assert again == [reference.shown for reference in references]
    cluster.await_rest()


def check(outcome: Outcome, reference: Answer, fault: Fault) -> None:
    assert outcome.seconds < DEADLINE_SECONDS
    if outcome.answer is not None:
        assert outcome.answer.shown == reference.shown
        return
    assert isinstance(outcome.error, Refused), outcome.error
    assert outcome.error.body["error"]["code"] in fault.errors, outcome.error
    assert outcome.tokens == reference.tokens[: len(outcome.tokens)]


class Load:
    """One streamed request a thread, all at once."""

    def __init__(self, cluster: RunningCluster, prompts: list[list[int]]) -> None:
        self._streams = [Stream(cluster, p, OUTPUT_TOKENS) for p in prompts]
        self._outcomes: dict[int, Outcome] = {}
        self._threads = [
            threading.Thread(target=self._run, args=(index,), daemon=True)
            for index in range(len(prompts))
        ]
        for thread in self._threads:
            thread.start()

    def await_tokens(self, count: int) -> None:
        """Until some request has so many, or has ended."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while max(len(s.tokens) for s in self._streams) < count and not self._outcomes:
            assert time.monotonic() < deadline
            time.sleep(0.002)

    def decoding_workers(self) -> list[str]:
        """Those in the middle of an answer."""
        streams = [s for i, s in enumerate(self._streams) if s.tokens and i not in self._outcomes]
        return sorted({stream.worker for stream in streams})

    def outcomes(self) -> list[Outcome]:
        for thread in self._threads:
            thread.join(DEADLINE_SECONDS)
        assert len(self._outcomes) == len(self._threads), "a request never ended"
        return [self._outcomes[index] for index in range(len(self._threads))]

    def _run(self, index: int) -> None:
        stream, started_at = self._streams[index], time.monotonic()
        answer: Answer | None = None
        error: Exception | None = None
        try:
            for _ in stream:
                pass
            answer = stream.answer()
        except Exception as raised:  # noqa: BLE001 - the thread boundary; judged by `check`
            error = raised
        seconds = time.monotonic() - started_at
        self._outcomes[index] = Outcome(answer, error, stream.tokens, seconds)

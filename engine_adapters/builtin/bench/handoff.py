"""Two nodes, one prefills and one decodes: what a hand-off adds to the first token."""

from __future__ import annotations

from moontide.kvstore.bench import Row
from moontide.kvstore.service import CommandFailed

from .client import Client
from .controls import Controls
from .measuring import Asker, Prompts, Say, ratio_row
from .processes import Cluster

_OUTPUT_TOKENS = 4  # more than one, so that there is something to decode


class HandoffBench:
    """Cold prompts by turns handed over and computed whole by the same prefill worker."""

    def __init__(self, model: str, cluster: Cluster, prompts: Prompts, say: Say) -> None:
        self._conductor = Asker(Client(cluster.conductor.url, cluster.token), model)
        self._controls = Controls(cluster)
        [self._prefill] = [w for w in cluster.workers if w.role == "prefill"]
        self._prompts = prompts
        self._say = say

    def run(self, pairs: int) -> list[Row]:
        """Raises CommandFailed, also where a prompt went another way than its row says."""
        self._split()
        self._colocated()
        split: list[float] = []
        colocated: list[float] = []
        for index in range(pairs):
            self._say(f"hand-off, pair {index + 1} of {pairs}")
            sides = [(self._split, split), (self._colocated, colocated)]
            for measure, seconds in sides if index % 2 == 0 else reversed(sides):
                seconds.append(measure())
        return [ratio_row("split TTFT / colocated TTFT", "seconds", split, colocated)]

    def _split(self) -> float:
        first = self._conductor.cold(self._prompts.next(), max_tokens=_OUTPUT_TOKENS)
        if not first.evidence.prefill_worker:
            raise CommandFailed("a prompt that should have been handed over was not")
        self._controls.settle()
        return first.seconds

    def _colocated(self) -> float:
        prompt = self._prompts.next()
        first = self._conductor.cold(prompt, max_tokens=_OUTPUT_TOKENS, worker=self._prefill.id)
        self._controls.settle()
        return first.seconds

"""Two nodes, prefill and decode workers on a core each: gaps between tokens of running decodes
while prompts are prefilled and handed over, against the same without."""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from moontide.kvstore.bench import Row
from moontide.kvstore.service import CommandFailed

from ..model import LoadedModel
from .client import Client
from .controls import Controls
from .measuring import Asker, Prompts, Say, ratio_row
from .processes import Cluster, Worker

_STREAMS = 4
_STREAM_PROMPT_TOKENS = 64
_MAX_STREAM_TOKENS = 1024
_WINDOW_SECONDS = 5.0
_MIN_GAPS = 20
_OUTPUT_TOKENS = 2  # of a prompt that is prefilled meanwhile: token 2 is decoded with the others


class TokenGapsBench:
    """Windows with and without prefills, by turns; the p95 of each window's gaps."""

    def __init__(self, model: LoadedModel, cluster: Cluster, prompts: Prompts, say: Say) -> None:
        self._client = Client(cluster.conductor.url, cluster.token)
        self._conductor = Asker(self._client, model.name)
        self._controls = Controls(cluster)
        self._model = model
        self._workers = {worker.role: worker for worker in cluster.workers}
        self._prompts = prompts
        self._say = say

    def run(self, pairs: int) -> list[Row]:
        """Raises CommandFailed, also on a machine with one core."""
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) < 2:
            raise CommandFailed("gaps between tokens are measured with 2 cores, this has 1")
        _pin(self._workers["prefill"], cores[0])
        _pin(self._workers["decode"], cores[1])
        idle, busy = [], []
        with contextlib.ExitStack() as stack:
            streams = [stack.enter_context(self._stream()) for _ in range(_STREAMS)]
            self._prefill()  # warms up, with the streams running
            for index in range(pairs):
                self._say(f"gaps between tokens, pair {index + 1} of {pairs}")
                idle.append(self._window(streams))
                busy.append(self._window_with_prefills(streams))
        return [ratio_row("p95 TBT while prefills run / without", "seconds", busy, idle)]

    def _window(self, streams: list[_Stream]) -> float:
        start = time.perf_counter()
        time.sleep(_WINDOW_SECONDS)
        return _p95(streams, start, time.perf_counter())

    def _window_with_prefills(self, streams: list[_Stream]) -> float:
        start = time.perf_counter()
        while time.perf_counter() < start + _WINDOW_SECONDS:
            self._prefill()
        end = time.perf_counter()
        self._controls.settle()
        return _p95(streams, start, end)

    def _prefill(self) -> None:
        first = self._conductor.cold(self._prompts.next(), max_tokens=_OUTPUT_TOKENS)
        if not first.evidence.prefill_worker:
            raise CommandFailed("a prompt that should have been handed over was not")

    @contextlib.contextmanager
    def _stream(self) -> Iterator[_Stream]:
        """Tokens come for as long as it lasts."""
        prompt = self._prompts.of_length(_STREAM_PROMPT_TOKENS)
        stream = _Stream(self._client, self._model, prompt)
        stream.thread.start()
        try:
            yield stream
        finally:
            stream.stop.set()
            stream.thread.join()


class _Stream:
    """One answer after the other to the same prompt; the gaps between their tokens."""

    def __init__(self, client: Client, model: LoadedModel, prompt: list[int]) -> None:
        self.stop = threading.Event()
        self.gaps: deque[tuple[float, float]] = deque(maxlen=100_000)  # (its end, seconds)
        self.failure: CommandFailed | None = None
        self.thread = threading.Thread(target=self._run, args=(client, model, prompt))

    def _run(self, client: Client, model: LoadedModel, prompt: list[int]) -> None:
        num_tokens = min(_MAX_STREAM_TOKENS, model.config.context_tokens - len(prompt))
        try:
            while not self.stop.is_set():
                times = client.token_times(model.name, prompt, max_tokens=num_tokens)
                before: float | None = None
                with contextlib.closing(times):
                    for now in times:
                        if before is not None:
                            self.gaps.append((now, now - before))
                        before = now
                        if self.stop.is_set():
                            return
        except CommandFailed as failure:
            self.failure = failure


def _p95(streams: list[_Stream], start: float, end: float) -> float:
    """Of the gaps that ended in the window."""
    for stream in streams:
        if stream.failure is not None:
            raise stream.failure
    gaps = [gap for stream in streams for at, gap in list(stream.gaps) if start <= at < end]
    if len(gaps) < _MIN_GAPS:
        raise CommandFailed(
            f"{len(gaps)} tokens came within {end - start:.1f} s, {_MIN_GAPS} at least are needed"
        )
    return statistics.quantiles(gaps, n=20)[-1]


def _pin(worker: Worker, core: int) -> None:
    """All its threads; those to come inherit it."""
    for task in Path(f"/proc/{worker.pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), {core})

"""The engine thread: takes requests, runs steps, tells each request what came of it."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace

from torch import Tensor

from ..errors import EngineStopped, InvalidRequest, Overloaded
from ..model import KVTensors, LoadedModel, Sampling, SequenceChunk, sample
from .output import Output, OutputText, Sink
from .page_pool import PagePool
from .readiness import wait_readable
from .scheduler import Chunk, KeysOf, Limits, Scheduler, StepPlan
from .sequence import FinishReason, Sequence
from .stats import EngineStats, Totals
from .step import StepCut, StepTransfers
from .store_connector import StoreConnector

_log = logging.getLogger(__name__)

_LONGEST_IDLE_S = 1.0


@dataclass(slots=True)
class _Request:
    sequence: Sequence
    output: OutputText
    sink: Sink


class Engine:
    """Owns the scheduler, the KV tensors and the connector; all of them are touched by its thread
    only. `submit`, `abort`, `clear_cache`, `stats` and `close` may be called from any thread and
    never wait for a step (`close` waits for the thread to end)."""

    def __init__(
        self,
        model: LoadedModel,
        tensors: KVTensors,
        connector: StoreConnector,
        limits: Limits,
        keys_of: KeysOf,
        *,
        on_death: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        self.limits = limits
        self.stats = EngineStats(pages=tensors.num_pages)
        self._model = model
        self._tensors = tensors
        self._connector = connector
        self._scheduler = Scheduler(limits, PagePool(tensors.num_pages), keys_of)
        self._on_death = on_death
        self._requests: dict[int, _Request] = {}  # engine thread
        self._totals = Totals()
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._live: set[int] = set()  # submitted and not finished; guarded by _lock
        self._aborted: set[int] = set()  # read between layers; guarded by _lock for changes
        self._next_id = 0
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # -- any thread -----------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive() and not self._stopping

    @property
    def num_live(self) -> int:
        """Requests that have not ended."""
        return len(self._live)

    def submit(self, prompt_ids: Seq[int], sampling: Sampling, sink: Sink) -> int:
        """Queues a request and returns its id; `sink` hears of it until an output with `finish`.
        Raises InvalidRequest, Overloaded (too many waiting) or EngineStopped, at once."""
        fitted = self._check(prompt_ids, sampling)
        with self._lock:
            if not self.is_alive:
                raise EngineStopped("the engine is not running")
            most = self.limits.max_running + self.limits.max_waiting
            if len(self._live) >= most:
                raise Overloaded(
                    f"{len(self._live)} requests are running or waiting; this worker takes {most}: "
                    "retry later"
                )
            self._next_id += 1
            sequence = Sequence(self._next_id, tuple(prompt_ids), fitted)
            self._live.add(sequence.sequence_id)
            output = OutputText(
                self._model.tokenizer, sequence.sampling, self._model.config.eos_token_ids
            )
            request = _Request(sequence, output, sink)
            self._send(lambda: self._add(request))
        return sequence.sequence_id

    def abort(self, sequence_id: int) -> None:
        """Ends it wherever it is, between two layers at the latest; unknown ids are ignored."""
        with self._lock:
            if sequence_id not in self._live:
                return
            self._aborted.add(sequence_id)
        self._send(lambda: self._finish_id(sequence_id, "abort"))

    def clear_cache(self) -> Future[int]:
        """Forgets every block that no request uses; the future tells how many. Raises
        EngineStopped."""
        done: Future[int] = Future()
        with self._lock:
            if not self.is_alive:
                raise EngineStopped("the engine is not running")
            self._send(lambda: done.set_result(self._scheduler.pool.clear()))
        return done

    def close(self, timeout_s: float = 5.0) -> bool:
        """Stops after the current layer, failing what is unfinished. False: the thread hangs."""
        with self._lock:
            self._stopping = True
            self._send(lambda: None)
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _check(self, prompt_ids: Seq[int], sampling: Sampling) -> Sampling:
        vocabulary = self._model.config.vocab_size
        outside = [token for token in prompt_ids if not 0 <= token < vocabulary]
        if outside:
            raise InvalidRequest(
                f"token id {outside[0]} is outside the model's vocabulary 0..{vocabulary - 1}"
            )
        most = self.limits.clip_output(
            len(prompt_ids), sampling.max_tokens, self._tensors.num_pages
        )
        return replace(sampling, max_tokens=most)

    def _send(self, command: Callable[[], None]) -> None:
        self._commands.put(command)
        os.eventfd_write(self._wake, 1)

    # -- engine thread --------------------------------------------------------------

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            while not self._stopping:
                self._turn()
        except Exception as caught:  # noqa: BLE001 - thread boundary
            _log.exception("engine_died")
            error = caught
        with self._lock:
            self._stopping = True  # nothing is sent any more
        message = f"the engine failed: {error}" if error else "the worker is shutting down"
        self._fail_all(message)
        if error is not None:
            self._on_death(error)

    def _turn(self) -> None:
        self._take_commands()
        for sequence, found_blocks in self._connector.poll():
            self._scheduler.lookup_done(sequence, found_blocks)
        plan = self._scheduler.plan()
        for sequence in plan.preempted:
            self._connector.lookup(sequence)
        if plan.chunks:
            self._step(plan)
        self._connector.publish(self._scheduler.pool)
        self.stats = self._snapshot()
        if not plan.chunks and not plan.preempted:
            self._wait()

    def _wait(self) -> None:
        seconds = min(_LONGEST_IDLE_S, self._connector.seconds_to_deadline())
        wait_readable([self._wake, *self._connector.filenos()], seconds)

    def _take_commands(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        while not self._commands.empty():
            self._commands.get_nowait()()

    def _add(self, request: _Request) -> None:
        sequence = request.sequence
        self._requests[sequence.sequence_id] = request
        self._scheduler.add(sequence)
        self._connector.lookup(sequence)

    def _step(self, plan: StepPlan) -> None:
        transfers = StepTransfers(
            self._connector, self._tensors, plan.chunks, is_aborted=self._is_aborted
        )
        chunks = [
            SequenceChunk(c.sequence.token_ids[c.start : c.stop], c.start, c.sequence.pages)
            for c in plan.chunks
        ]
        self._totals.steps += 1
        try:
            logits = self._model.decoder.forward(chunks, self._tensors, transfers)
        except StepCut:
            transfers.abandon()
        else:
            transfers.finish()
            for row, chunk in enumerate(plan.chunks):
                if transfers.failed_load(chunk) is None:
                    self._computed(chunk, logits[row], transfers.stored_through(chunk))
        for chunk in plan.chunks:
            valid_blocks = transfers.failed_load(chunk)
            if valid_blocks is not None:
                self._totals.recomputed += 1
                self._scheduler.load_failed(chunk, valid_blocks)

    def _computed(self, chunk: Chunk, logits: Tensor, stored_blocks: int) -> None:
        sequence = chunk.sequence
        sequence.stored_blocks = stored_blocks
        self._scheduler.computed(chunk)
        if chunk.stop == sequence.num_tokens:
            self._next_token(sequence, sample(logits, sequence.sampling, chunk.stop))

    def _is_aborted(self, chunk: Chunk) -> bool:
        return self._stopping or chunk.sequence.sequence_id in self._aborted

    def _next_token(self, sequence: Sequence, token_id: int) -> None:
        request = self._requests[sequence.sequence_id]
        if sequence.num_output == 0:
            sequence.reuse.prefill_end_at = time.time()
            self._totals.prompt_tokens += len(sequence.prompt_ids)
            self._totals.cached_tokens += sequence.reuse.cached_tokens
        self._totals.output_tokens += 1
        text, finish = request.output.push(token_id)
        if finish is None:
            self._scheduler.append(sequence, token_id)
            request.sink(Output(text, (token_id,)))
        else:
            self._finish(request, Output(text, (token_id,), finish, sequence.reuse))

    def _finish_id(self, sequence_id: int, reason: FinishReason) -> None:
        request = self._requests.get(sequence_id)
        if request is not None:
            self._finish(request, Output("", (), reason, request.sequence.reuse))

    def _finish(self, request: _Request, last: Output) -> None:
        """Frees everything the request held, then says so."""
        sequence = request.sequence
        del self._requests[sequence.sequence_id]
        self._scheduler.finish(sequence)
        self._connector.forget(sequence)
        if last.finish == "abort":
            self._totals.aborted += 1
        else:
            self._totals.finished += 1
        with self._lock:
            self._live.discard(sequence.sequence_id)
            self._aborted.discard(sequence.sequence_id)
        self.stats = self._snapshot()  # whoever hears of the end sees it counted
        request.sink(last)

    def _fail_all(self, message: str) -> None:
        """Tells everyone who still waits, also those whose request was never taken up."""
        self._take_commands()
        for request in list(self._requests.values()):
            self._finish(request, Output("", (), "error", request.sequence.reuse, message))

    def _snapshot(self) -> EngineStats:
        pool = self._scheduler.pool
        return EngineStats(
            running=self._scheduler.num_running,
            waiting=self._scheduler.num_waiting,
            preemptions=self._scheduler.preemptions,
            pages=pool.num_pages,
            pages_referenced=pool.num_referenced,
            pages_idle=pool.num_idle,
            store=self._connector.counters(),
            **asdict(self._totals),
        )

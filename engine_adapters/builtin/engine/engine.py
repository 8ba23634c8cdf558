"""The engine thread: takes requests, runs steps, tells each request what came of it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace

from torch import Tensor

from ..errors import InvalidRequest
from ..model import KVTensors, LoadedModel, Sampling, SequenceChunk, sample
from .inbox import Inbox
from .intake import Intake
from .output import Output, OutputText, Piece, Reserved, Sink
from .page_pool import PagePool
from .plan import Chunk, Limits, StepPlan
from .readiness import wait_readable
from .scheduler import KeysOf, Scheduler
from .sequence import FinishReason, Handoff, SendHandoff, Sequence
from .stats import EngineStats, Totals
from .step import StepCut, StepTransfers
from .store_connector import StoreConnector

logger = logging.getLogger(__name__)

_LONGEST_IDLE_S = 1.0
_DRAIN_S = 0.5


@dataclass(slots=True)
class _Request:
    sequence: Sequence
    output: OutputText
    sink: Sink
    left_over: Piece  # of output that was resumed
    is_counted: bool = False  # its prompt is in the totals


class Engine:
    """Owns the scheduler, the KV tensors and the connector; all of them are touched by its thread
    only. Methods under "any thread" never wait for a step (`close` waits for the thread to
    end)."""

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
        self._scheduler = Scheduler(limits, PagePool(tensors.num_pages), keys_of, connector.chooser)
        self._on_death = on_death
        self._requests: dict[int, _Request] = {}  # engine thread
        self._totals = Totals()
        self._intake = Intake(self._scheduler, connector, self._totals)
        self._inbox = Inbox(limits.max_running + limits.max_waiting)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # -- any thread -----------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive() and not self._inbox.closed

    @property
    def num_live(self) -> int:
        """Requests that have not ended."""
        return self._inbox.num_live

    @property
    def room_tokens(self) -> int:
        """Prompt and output together that one request can have here."""
        return self.limits.room_tokens(self._tensors.num_pages)

    @property
    def store_instance(self) -> str:
        """Where this engine stores its blocks; empty: nowhere yet."""
        return self._connector.daemon()

    def submit(
        self,
        prompt_ids: Seq[int],
        sampling: Sampling,
        sink: Sink,
        *,
        num_resumed: int = 0,
        handoff: Handoff | None = None,
    ) -> int:
        """Queues a request and returns its id; `sink` hears of it until an output with `finish`.
        The last `num_resumed` ids of the prompt are output that the caller has: it goes on from
        there. Raises InvalidRequest, Overloaded (too many waiting) or EngineStopped, at once."""
        fitted = self._check(prompt_ids, sampling, num_resumed)
        output = OutputText(self._model.tokenizer, fitted, self._model.config.eos_token_ids)
        resumed = prompt_ids[len(prompt_ids) - num_resumed :]
        left_over = output.resume(resumed)

        def command_of(sequence_id: int) -> Callable[[], None]:
            sequence = Sequence(sequence_id, tuple(prompt_ids), fitted, handoff)
            return lambda: self._add(_Request(sequence, output, sink, left_over))

        return self._inbox.admit(command_of)

    def give_first_token(self, sequence_id: int, token_id: int) -> None:
        """Token 1 of a hand-off that is received here; once. Unknown ids are ignored. Raises
        InvalidRequest, EngineStopped."""
        self._check_tokens([token_id])
        self._inbox.send(lambda: self._take_first_token(sequence_id, token_id))

    def abort(self, sequence_id: int) -> None:
        """Ends it wherever it is, between two layers at the latest; unknown ids are ignored."""
        self._inbox.abort(sequence_id, lambda: self._finish_id(sequence_id, "abort"))

    def clear_cache(self) -> Future[int]:
        """Forgets every block that no request uses; the future tells how many. Raises
        EngineStopped."""
        done: Future[int] = Future()
        self._inbox.send(lambda: done.set_result(self._scheduler.pool.clear()))
        return done

    def close(self, timeout_s: float = 5.0) -> bool:
        """Stops after the current layer, failing what is unfinished. False: the thread hangs."""
        self._inbox.close()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        self._inbox.release()
        return True

    def _check(self, prompt_ids: Seq[int], sampling: Sampling, num_resumed: int) -> Sampling:
        self._check_tokens(prompt_ids)
        if not 0 <= num_resumed <= max(0, len(prompt_ids) - 1):
            raise InvalidRequest(
                f"resume_tokens is {num_resumed}; the prompt has {len(prompt_ids)} tokens and its "
                "first cannot be output"
            )
        most = self.limits.clip_output(
            len(prompt_ids), max(1, sampling.max_tokens - num_resumed), self._tensors.num_pages
        )
        return replace(sampling, max_tokens=min(sampling.max_tokens, num_resumed + most))

    def _check_tokens(self, token_ids: Seq[int]) -> None:
        vocabulary = self._model.config.vocab_size
        outside = [token for token in token_ids if not 0 <= token < vocabulary]
        if outside:
            raise InvalidRequest(
                f"token id {outside[0]} is outside the model's vocabulary 0..{vocabulary - 1}"
            )

    # -- engine thread --------------------------------------------------------------

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            while not self._inbox.closed:
                self._turn()
        except Exception as caught:  # thread boundary
            logger.exception("engine_died")
            error = caught
        self._inbox.close()  # nothing is sent any more
        message = f"the engine failed: {error}" if error else "the worker is shutting down"
        self._fail_all(message)
        self._connector.drain(_DRAIN_S)
        if error is not None:
            self._on_death(error)

    def _turn(self) -> None:
        self._inbox.run_commands()
        for sequence in self._intake.collect():
            self._fail_handoff(sequence)
        plan = self._scheduler.plan()
        for sequence in self._intake.follow(plan):
            self._requests[sequence.sequence_id].sink(Reserved())
        if plan.chunks:
            self._step(plan)
        self._connector.publish(self._scheduler.pool)
        self.stats = self._snapshot()
        if not (plan.chunks or plan.preempted or plan.loads):
            self._wait()

    def _wait(self) -> None:
        if self._inbox.closed:
            return  # its wake-up may have been taken by now
        seconds = min(_LONGEST_IDLE_S, self._intake.seconds_to_deadline())
        wait_readable([self._inbox.fileno(), *self._connector.filenos()], seconds)

    def _add(self, request: _Request) -> None:
        sequence = request.sequence
        self._requests[sequence.sequence_id] = request
        self._intake.add(sequence)
        text, finish = request.left_over
        if finish is not None:
            self._finish(request, Output(text, (), finish, sequence.reuse))

    def _take_first_token(self, sequence_id: int, token_id: int) -> None:
        request = self._requests.get(sequence_id)
        if request is None or not request.sequence.is_received:
            return
        text, finish = request.output.resume([token_id])
        if finish is None:
            self._intake.give_first_token(request.sequence, token_id)
        else:
            self._finish(request, Output(text, (), finish, request.sequence.reuse))

    # -- steps ------------------------------------------------------------------------

    def _step(self, plan: StepPlan) -> None:
        transfers = StepTransfers(self._connector, plan.chunks, is_aborted=self._is_aborted)
        chunks = [
            SequenceChunk(c.sequence.token_ids[c.start : c.stop], c.start, c.sequence.pages)
            for c in plan.chunks
        ]
        self._totals.steps += 1
        started = time.monotonic()
        try:
            logits = self._model.decoder.forward(chunks, self._tensors, transfers)
        except StepCut:
            transfers.abandon()
        else:
            self._connector.advisor.computed(plan.chunks, time.monotonic() - started)
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
        return self._inbox.closed or self._inbox.is_aborted(chunk.sequence.sequence_id)

    def _next_token(self, sequence: Sequence, token_id: int) -> None:
        request = self._requests[sequence.sequence_id]
        if sequence.num_output == 0:
            sequence.reuse.prefill_end_at = time.time()
        self._count_prompt(request)
        self._totals.output_tokens += 1
        if isinstance(sequence.handoff, SendHandoff):
            text, finish = request.output.push_open(token_id)
            self._finish(request, Output(text, (token_id,), finish or "length", sequence.reuse))
            return
        text, finish = request.output.push(token_id)
        if finish is None:
            self._scheduler.append(sequence, token_id)
            request.sink(Output(text, (token_id,)))
        else:
            self._finish(request, Output(text, (token_id,), finish, sequence.reuse))

    def _count_prompt(self, request: _Request) -> None:
        if not request.is_counted:
            request.is_counted = True
            self._totals.prompt_tokens += len(request.sequence.prompt_ids)
            self._totals.cached_tokens += request.sequence.reuse.cached_tokens

    # -- ends -------------------------------------------------------------------------

    def _fail_handoff(self, sequence: Sequence) -> None:
        seconds = self._connector.settings.handoff_timeout_s
        message = f"no first token came within {seconds:g} s of the pages being reserved"
        request = self._requests[sequence.sequence_id]
        self._finish(request, Output("", (), "error", sequence.reuse, message))

    def _finish_id(self, sequence_id: int, reason: FinishReason) -> None:
        request = self._requests.get(sequence_id)
        if request is not None:
            self._finish(request, Output("", (), reason, request.sequence.reuse))

    def _finish(self, request: _Request, last: Output) -> None:
        """Frees everything the request held, then says so."""
        sequence = request.sequence
        del self._requests[sequence.sequence_id]
        self._intake.finish(sequence)
        if last.finish == "abort":
            self._totals.aborted += 1
        else:
            self._totals.finished += 1
        self._inbox.ended(sequence.sequence_id)
        self.stats = self._snapshot()  # whoever hears of the end sees it counted
        request.sink(last)

    def _fail_all(self, message: str) -> None:
        """Tells everyone who still waits, also those whose request was never taken up."""
        self._inbox.run_commands()
        for request in list(self._requests.values()):
            self._finish(request, Output("", (), "error", request.sequence.reuse, message))

    def _snapshot(self) -> EngineStats:
        pool = self._scheduler.pool
        return EngineStats(
            running=self._scheduler.num_running,
            loading=self._scheduler.num_loading,
            waiting=self._scheduler.num_waiting,
            preemptions=self._scheduler.preemptions,
            pages=pool.num_pages,
            pages_referenced=pool.num_referenced,
            pages_idle=pool.num_idle,
            store=self._connector.counters(),
            speeds=self._connector.advisor.speeds(),
            **asdict(self._totals),
        )

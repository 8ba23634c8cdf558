"""Brings one sequence's cached blocks into its pages, layer by layer.

part      0    1    2    3    4 …     a part is one layer of a run of blocks; layer 0's come first
buffer    a    b    c    a    b …     window of 3 staging buffers
When a part was scattered into the pages, its buffer takes the part one window further on.

In a step `bring` waits for a layer while the model computes the ones before it. Beside a running
batch `fill` takes what has come, part by part, between steps.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from moontide.kvstore import JobId, JobResult, JobStatus, Ticket

from ..model import KVTensors, block_buffers
from .load_advisor import LoadOutcome
from .load_progress import LoadProgress
from .sequence import Sequence
from .store_jobs import JobDesk, StagingBudget

_JOB_SECONDS = 120.0
"""Limit of one job, whatever happens: a load is given up on long before, see `idle_s`."""


@dataclass(frozen=True, slots=True)
class _Part:
    layer: int
    blocks: range  # counted from the load's first


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadLimits:
    """`idle_s`: seconds in which nothing of a load came, after which it is given up on; `within_s`:
    seconds in which all of it must come."""

    window_bytes: int
    part_bytes: int
    idle_s: float
    within_s: float = math.inf


class LayerLoad:
    """Of `blocks` of a sequence, whose pages stay its own until `close`. `valid_blocks` shrinks to
    those before the first that did not arrive whole; 0 means nothing more is waited for. Its
    staging is given back when the last job that may write it has ended, which can be after
    `close`."""

    def __init__(
        self,
        desk: JobDesk,
        tensors: KVTensors,
        staging: StagingBudget,
        limits: LoadLimits,
        *,
        sequence: Sequence,
        blocks: range,
        ticket: Ticket,
    ) -> None:
        assert sequence.found is not None
        self.sequence = sequence
        self.blocks = blocks
        self.valid_blocks = len(blocks)
        self.loaded_bytes = 0
        self._desk = desk
        self._tensors = tensors
        self._staging = staging
        self._idle_s = limits.idle_s
        self._found = sequence.found
        self._ticket = ticket
        self._pages = [sequence.pages[block] for block in blocks]
        self._outstanding: dict[int, JobId] = {}
        self._num_submitted = self._num_scattered = 0  # parts
        self._begun_at = self._progress_at = time.monotonic()
        self._due_at = self._begun_at + limits.within_s
        self._progress = LoadProgress(len(blocks) * len(tensors.keys) * tensors.block_bytes)
        self._dropped = False  # it was not worth waiting for the rest
        self._closed = False
        self._parts, window = self._split(limits)
        self._held_bytes = window * len(self._parts[0].blocks) * self._block_bytes
        if not staging.take(self._held_bytes):
            self._held_bytes = 0
            self.give_up()
            return
        first = len(self._parts[0].blocks)
        self._buffers = [tensors.empty_blocks(first) for _ in range(window)]
        self._refill()

    @property
    def failed(self) -> bool:
        return self.valid_blocks < len(self.blocks)

    @property
    def is_over(self) -> bool:
        """Everything that will come is in the pages."""
        return self.valid_blocks == 0 or self._num_scattered == len(self._parts)

    @property
    def is_ready(self) -> bool:
        """The next part has come."""
        return not self.is_over and (
            self._num_scattered < self._num_submitted
            and self._num_scattered not in self._outstanding
        )

    @property
    def was_dropped(self) -> bool:
        """Computing was faster than waiting for the rest."""
        return self._dropped

    @property
    def late_at(self) -> float:
        """When it is to be given up on, unless something comes (monotonic)."""
        return min(self._idle_at, self._dear_at)

    @property
    def outcome(self) -> LoadOutcome | None:
        """What its time tells of its sources; None: nothing."""
        if self.sequence.is_received or (self.failed and not self._dropped):
            return None
        now = time.monotonic()
        seconds = self._progress.projected_s(now) if self._dropped else self._progress.busy_s(now)
        if not self._is_here and not self._dropped:  # they are on their way since they were found
            before_s = self._begun_at - self._found.at
            if before_s > seconds:
                return None
            seconds += before_s
        blocks_by_source = Counter(map(self._found.source, self.blocks))
        block_bytes = self._progress.total_bytes // len(self.blocks)
        return LoadOutcome(
            {source: count * block_bytes for source, count in blocks_by_source.items()},
            seconds,
            self.sequence.estimate,
            self._dropped,
        )

    def fill(self) -> int:
        """Writes the next part, which has come, into the pages. Returns its bytes."""
        assert self.is_ready
        part = self._parts[self._num_scattered]
        valid = range(part.blocks.start, min(part.blocks.stop, self.valid_blocks))
        if valid:
            buffer = self._buffers[self._num_scattered % len(self._buffers)]
            pages = self._pages[valid.start : valid.stop]
            self._tensors.scatter(part.layer, pages, buffer[: len(valid)])
            self._count(valid)
        self._num_scattered += 1
        self._progress_at = time.monotonic()
        self._note(part)
        self._refill()
        return len(valid) * self._block_bytes

    def bring(self, layer: int, is_wanted: Callable[[], bool]) -> None:
        """Waits for `layer` (while something comes, and while it is wanted) and writes it into the
        pages."""
        self._desk.poll()
        self._progress_at = time.monotonic()  # before, nobody looked
        while not self.is_over and self._parts[self._num_scattered].layer <= layer:
            if self.is_ready:
                self.fill()
                continue
            before = self._progress_at
            self._desk.wait_until(lambda: self.is_over or self.is_ready, self.late_at, is_wanted)
            if not is_wanted():
                self.give_up()
            elif not self.is_ready and self._progress_at == before:
                self.time_out()
        if self.is_over and self.valid_blocks == 0:
            self.give_up()

    def time_out(self) -> None:
        """Nothing has come for too long."""
        if self._dear_at <= time.monotonic():
            self._dropped = True
        elif self._is_local:
            self._desk.unanswered("a load had no result in time")
        self.give_up()

    def hurry(self, idle_s: float, within_s: float) -> None:
        """From now on those are the limits."""
        self._idle_s = idle_s
        self._progress_at = time.monotonic()
        self._due_at = self._progress_at + within_s

    def give_up(self) -> None:
        """Nothing more is wanted; running jobs keep their buffers until they have stopped."""
        self.valid_blocks = 0
        self._cancel()

    def close(self) -> None:
        """Nothing is written into the pages any more."""
        self._closed = True
        self._cancel()
        self._settle()

    @property
    def _idle_at(self) -> float:
        return self._progress_at + self._idle_s if self._outstanding else float("inf")

    @property
    def _dear_at(self) -> float:
        """From then on waiting costs more than computing."""
        estimate = self.sequence.estimate
        if estimate is None:
            return self._due_at
        return min(self._due_at, self._progress.late_at(estimate.recompute_s))

    @property
    def _is_here(self) -> bool:
        """All of it lay in this node's memory when it was found."""
        return all(self._found.source(block).transport == "shm" for block in self.blocks)

    @property
    def _block_bytes(self) -> int:
        return self._tensors.block_bytes

    @property
    def _is_local(self) -> bool:
        """Whether a failure says something about this node's store."""
        return all(self._found.source(block).is_local for block in self.blocks)

    def _split(self, limits: LoadLimits) -> tuple[list[_Part], int]:
        """The parts, and how many of them are under way at once."""
        most = min(limits.part_bytes, limits.window_bytes) // self._block_bytes
        size = max(1, min(len(self.blocks), most))
        parts = [
            _Part(layer, range(first, min(first + size, len(self.blocks))))
            for layer in range(len(self._tensors.keys))
            for first in range(0, len(self.blocks), size)
        ]
        window = limits.window_bytes // (size * self._block_bytes)
        return parts, max(1, min(len(parts), window))

    def _refill(self) -> None:
        """Asks for as many parts as there are free buffers."""
        stop = min(len(self._parts), self._num_scattered + len(self._buffers))
        while self._num_submitted < stop and self.valid_blocks:
            if self._parts[self._num_submitted].blocks.start < self.valid_blocks:
                self._submit(self._num_submitted)
            self._num_submitted += 1

    def _submit(self, index: int) -> None:
        part = self._parts[index]
        buffer = self._buffers[index % len(self._buffers)][: len(part.blocks)]
        start = self.blocks.start + part.blocks.start - self._found.first_block
        job = self._desk.submit(
            lambda: self._desk.kv.submit_load(
                self._ticket,
                [part.layer],
                [block_buffers(buffer)],
                blocks=range(start, start + len(part.blocks)),
                deadline_s=_JOB_SECONDS,
            ),
            lambda result: self._arrived(index, result),
        )
        if job is None:
            self.valid_blocks = 0
        else:
            self._outstanding[index] = job
            self._progress.asked(self._part_bytes(part), time.monotonic())

    def _part_bytes(self, part: _Part) -> int:
        return len(part.blocks) * self._block_bytes

    def _arrived(self, index: int, result: JobResult) -> None:
        del self._outstanding[index]
        self._progress.came(self._part_bytes(self._parts[index]), result.ended_at)
        if result.status is JobStatus.DONE:
            self._progress_at = time.monotonic()
            self._desk.answered()
        else:
            if result.status is JobStatus.TIMED_OUT and self._is_local:
                self._desk.unanswered(result.reason)
            first = self.blocks.start - self._found.first_block
            first_bad = min(result.failed_blocks, default=first)
            self.valid_blocks = min(self.valid_blocks, max(0, first_bad - first))
        self._settle()

    def _note(self, part: _Part) -> None:
        """Times at which the first and the last layer were complete."""
        if part.blocks.stop < len(self.blocks):
            return
        reuse = self.sequence.reuse
        if part.layer == 0:
            reuse.first_layer_at = time.time()
        if part.layer == len(self._tensors.keys) - 1:
            reuse.last_layer_at = time.time()

    def _count(self, valid: range) -> None:
        self.loaded_bytes += len(valid) * self._block_bytes
        sources = Counter(self._found.source(self.blocks[index]) for index in valid)
        for source, count in sources.items():
            self.sequence.reuse.add_bytes(source, count * self._block_bytes)

    def _cancel(self) -> None:
        for job in list(self._outstanding.values()):
            self._desk.cancel(job)

    def _settle(self) -> None:
        if self._closed and not self._outstanding:
            self._staging.give(self._held_bytes)
            self._held_bytes = 0

"""Brings one sequence's cached blocks into its pages, layer by layer, while the model computes.

layer     0 1 2 3 4 …          window of 3 staging buffers
arriving  a b c                 layer l goes through buffer l mod 3; when layer l was scattered into
scattered                       the pages, its buffer takes layer l + 3
"""

from __future__ import annotations

import time
from collections.abc import Callable

from moontide.kvstore import JobId, JobResult, JobStatus, Ticket

from ..model import KVTensors, block_buffers
from .scheduler import Chunk
from .store_jobs import JobDesk


class LayerLoad:
    """One chunk's load. `valid_blocks` shrinks to the blocks before the first that did not arrive
    whole; 0 means nothing more is waited for. Its staging is given back when the last job that may
    write it has ended, which can be after the step."""

    def __init__(
        self,
        desk: JobDesk,
        tensors: KVTensors,
        chunk: Chunk,
        ticket: Ticket,
        *,
        window_bytes: int,
        deadline: float,
    ) -> None:
        self.chunk = chunk
        self.valid_blocks = len(chunk.load)
        self.loaded_bytes = 0
        self._desk = desk
        self._tensors = tensors
        self._ticket = ticket
        self._deadline = deadline
        self._num_layers = len(tensors.keys)
        self._pages = [chunk.sequence.pages[block] for block in chunk.load]
        self._outstanding: dict[int, JobId] = {}
        self._closed = False
        self._given_up = False
        first = tensors.empty_blocks(len(chunk.load))
        self._layer_bytes = first.numel() * first.element_size()
        window = max(1, min(self._num_layers, window_bytes // self._layer_bytes))
        self._held_bytes = window * self._layer_bytes
        if not desk.staging.take(self._held_bytes):
            self._held_bytes = 0
            self.give_up()
            return
        self._buffers = [first, *(tensors.empty_blocks(len(chunk.load)) for _ in range(window - 1))]
        for layer in range(window):
            self._submit(layer)

    @property
    def failed(self) -> bool:
        return self.valid_blocks < len(self.chunk.load)

    def bring(self, layer: int, is_wanted: Callable[[], bool]) -> None:
        """Waits for `layer` (until the deadline, and while it is wanted) and writes what arrived
        into the pages."""
        if self._given_up:
            return
        came = self._desk.wait_until(
            lambda: layer not in self._outstanding, self._deadline, is_wanted
        )
        if not came and is_wanted():
            self._desk.unanswered("a load had no result at its deadline")
        if not came or self.valid_blocks == 0 or not is_wanted():
            self.give_up()
            return
        blocks = self._buffers[layer % len(self._buffers)][: self.valid_blocks]
        self._tensors.scatter(layer, self._pages[: self.valid_blocks], blocks)
        self._note(layer)
        if layer + len(self._buffers) < self._num_layers:
            self._submit(layer + len(self._buffers))

    def give_up(self) -> None:
        """Nothing more is wanted; running jobs keep their buffers until they have stopped."""
        if self._given_up:
            return
        self._given_up = True
        self.valid_blocks = 0
        for job in list(self._outstanding.values()):
            self._desk.cancel(job)

    def close(self) -> None:
        """The step is over."""
        self._closed = True
        self._settle()

    def _submit(self, layer: int) -> None:
        destinations = block_buffers(self._buffers[layer % len(self._buffers)])
        job = self._desk.submit(
            lambda: self._desk.kv.submit_load(
                self._ticket,
                [layer],
                [destinations],
                blocks=self.chunk.load,
                deadline_s=max(0.001, self._deadline - time.monotonic()),
            ),
            lambda result: self._arrived(layer, result),
        )
        if job is None:
            self.valid_blocks = 0
        else:
            self._outstanding[layer] = job

    def _arrived(self, layer: int, result: JobResult) -> None:
        del self._outstanding[layer]
        if result.status is JobStatus.DONE:
            self._desk.answered()
        else:
            if result.status is JobStatus.TIMED_OUT:
                self._desk.unanswered(result.reason)
            first_bad = min(result.failed_blocks, default=self.chunk.load.start)
            self.valid_blocks = min(self.valid_blocks, max(0, first_bad - self.chunk.load.start))
        self._settle()

    def _note(self, layer: int) -> None:
        reuse = self.chunk.sequence.reuse
        now = time.time()
        if layer == 0:
            reuse.first_layer_at = now
        if layer == self._num_layers - 1:
            reuse.last_layer_at = now
        self.loaded_bytes += self.valid_blocks * self._layer_bytes // len(self.chunk.load)

    def _settle(self) -> None:
        if self._closed and not self._outstanding:
            self._desk.staging.give(self._held_bytes)
            self._held_bytes = 0

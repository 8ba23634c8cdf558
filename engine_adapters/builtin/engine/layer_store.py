"""Offers whole pages to the store, each layer as soon as it is computed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from torch import Tensor

from moontide.kvstore import JobResult, JobStatus, StoreHandle
from moontide.kvstore.types import ReserveStatus

from ..model import KVTensors, block_buffers
from .store_jobs import JobDesk


class LayerStore:
    """A store that is slow, full or away makes `given_up` true; the step is computed all the same.
    Copies are taken from the pages at once, so pages may change after the step."""

    def __init__(
        self,
        desk: JobDesk,
        tensors: KVTensors,
        pages: Sequence[int],
        begin: Callable[[float], StoreHandle],
        *,
        deadline: float,
    ) -> None:
        """`begin` is given the seconds up to `deadline` (monotonic)."""
        self.given_up = False
        self.stored_bytes = 0
        self._desk = desk
        self._tensors = tensors
        self._deadline = deadline
        self._pages = pages
        self._handle = desk.attempt(lambda: begin(self._left()))
        if self._handle is None:
            self.given_up = True
        else:
            desk.watch(self._handle.job, self._ended)

    def offer(self, layer: int) -> None:
        """Hands over the layer, which is in the pages by now; nothing once given up."""
        handle = self._handle
        if self.given_up or handle is None:
            return
        num_bytes = 0
        sources: list[memoryview | None] = [None] * len(self._pages)
        if handle.statuses is None or ReserveStatus.RESERVED in handle.statuses:
            blocks = self._gather(layer)
            num_bytes = blocks.numel() * blocks.element_size()
            sources = list(block_buffers(blocks))
        if not self._desk.staging.take(num_bytes):
            self.give_up()
            return
        job = self._desk.submit(
            lambda: self._desk.kv.submit_store(handle, layer, sources, deadline_s=self._left()),
            lambda result: self._taken(result, num_bytes),
        )
        if job is None:
            self._desk.staging.give(num_bytes)
            self.give_up()
            return
        self.stored_bytes += num_bytes

    def commit(self) -> None:
        handle = self._handle
        if not self.given_up and handle is not None:
            self._desk.attempt(lambda: self._desk.kv.commit(handle))

    def give_up(self) -> None:
        """The blocks are not to become visible."""
        handle = self._handle
        if not self.given_up and handle is not None:
            self.given_up = True
            self._desk.attempt(lambda: self._desk.kv.abort(handle))

    def _gather(self, layer: int) -> Tensor:
        return self._tensors.gather(layer, self._pages)

    def _taken(self, result: JobResult, num_bytes: int) -> None:
        self._desk.staging.give(num_bytes)
        if result.status is not JobStatus.DONE:
            self.give_up()

    def _ended(self, result: JobResult) -> None:
        """The whole store's one result: committed, or ended before its time."""
        if result.status is not JobStatus.DONE:
            self.given_up = True

    def _left(self) -> float:
        return max(0.001, self._deadline - time.monotonic())


class TailStore(LayerStore):
    """Of a prompt's last page, which is not full: what lies beyond its `num_tokens` goes out as
    zeros, not as what the page held before."""

    def __init__(
        self,
        desk: JobDesk,
        tensors: KVTensors,
        page: int,
        num_tokens: int,
        begin: Callable[[float], StoreHandle],
        *,
        deadline: float,
    ) -> None:
        self._num_tokens = num_tokens
        super().__init__(desk, tensors, [page], begin, deadline=deadline)

    def _gather(self, layer: int) -> Tensor:
        blocks = super()._gather(layer)
        blocks[..., self._num_tokens :, :] = 0
        return blocks

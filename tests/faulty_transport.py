"""A transport that fails on purpose, for everything that must live with one."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass

from moontide.transfer import Transport
from moontide.transfer.batches import Then
from moontide.transfer.errors import Busy
from moontide.transfer.types import (
    BatchId,
    Opcode,
    Priority,
    SliceState,
    SliceStatus,
    TransferCounters,
    TransferRequest,
)


def never(number: int) -> bool:
    return False


@dataclass(slots=True)
class Faults:
    """Asked with the number (from 0) of each submit or slice."""

    refuse: Callable[[int], bool] = never  # submit raises Busy
    fail: Callable[[int], bool] = never  # the slice ends FAILED "injected"
    corrupt: Callable[[int], bool] = never  # a byte of what a READ brings is flipped


class FaultyTransport:
    """Decorates `inner`; without faults it is `inner`."""

    def __init__(self, inner: Transport, faults: Faults | None = None) -> None:
        self._inner = inner
        self.faults = faults or Faults()
        self._num_submits = 0
        self._num_slices = 0
        self._failing: dict[BatchId, set[int]] = {}
        self._corrupting: dict[BatchId, list[memoryview]] = {}

    def submit(
        self,
        requests: Sequence[TransferRequest],
        *,
        deadline: float,
        then: Then | None = None,
        priority: Priority = Priority.NORMAL,
    ) -> BatchId:
        number, self._num_submits = self._num_submits, self._num_submits + 1
        if self.faults.refuse(number):
            raise Busy("injected")
        numbers = range(self._num_slices, self._num_slices + len(requests))
        self._num_slices = numbers.stop
        failing = {i for i, n in enumerate(numbers) if self.faults.fail(n)}
        corrupting = [
            request.local
            for n, request in zip(numbers, requests, strict=True)
            if request.opcode is Opcode.READ and self.faults.corrupt(n)
        ]
        if then is None:
            batch = self._inner.submit(requests, deadline=deadline, priority=priority)
            self._failing[batch], self._corrupting[batch] = failing, corrupting
            return batch
        tell = then

        def ended(statuses: tuple[SliceStatus, ...]) -> None:
            _flip(corrupting)
            tell(_failed(statuses, failing))

        return self._inner.submit(requests, deadline=deadline, then=ended, priority=priority)

    def poll(self, batch: BatchId) -> tuple[SliceStatus, ...]:
        statuses = self._inner.poll(batch)
        if all(status.state is not SliceState.PENDING for status in statuses):
            self._corrupt(batch)
        return _failed(statuses, self._failing[batch])

    def wait(self, batch: BatchId) -> tuple[SliceStatus, ...]:
        self._inner.wait(batch)
        return self.poll(batch)

    def transfer(
        self,
        requests: Sequence[TransferRequest],
        *,
        deadline: float,
        priority: Priority = Priority.NORMAL,
    ) -> tuple[SliceStatus, ...]:
        batch = self.submit(requests, deadline=deadline, priority=priority)
        statuses = self.wait(batch)
        self.forget(batch)
        return statuses

    def finished(self) -> list[BatchId]:
        finished = self._inner.finished()
        for batch in finished:
            self._corrupt(batch)
        return finished

    def fileno(self) -> int:
        return self._inner.fileno()

    def cancel(self, batch: BatchId) -> None:
        self._inner.cancel(batch)

    def forget(self, batch: BatchId) -> None:
        self._inner.forget(batch)
        self._failing.pop(batch, None)
        self._corrupting.pop(batch, None)

    def counters(self) -> TransferCounters:
        """Those of `inner`: slices that failed here were done there."""
        return self._inner.counters()

    def close(self) -> None:
        self._inner.close()

    def _corrupt(self, batch: BatchId) -> None:
        """Before anybody hears that the batch is done; once."""
        _flip(self._corrupting.pop(batch, ()))


def _failed(statuses: Sequence[SliceStatus], failing: Container[int]) -> tuple[SliceStatus, ...]:
    return tuple(
        SliceStatus(SliceState.FAILED, "injected")
        if index in failing and status.state is SliceState.DONE
        else status
        for index, status in enumerate(statuses)
    )


def _flip(views: Iterable[memoryview]) -> None:
    for view in views:
        view[0] ^= 0xFF

"""A second thread that copies beside the caller: one core alone may not use all the bandwidth that
memory has. A batch is shared value by value, a large value piece by piece.

Where other threads want the cores, two wait for each other to be scheduled and for the
interpreter's lock: then the caller copies alone.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from itertools import chain

from xxhash import xxh3_64

from .copying import (
    CHUNK_BYTES,
    Bytes,
    copy,
    copy_and_checksum,
    do_nothing,
    flat_pair,
    left_in_cache,
)
from .cores import Cores
from .locking import take

LEAST_SHARED_BYTES = 4 << 20
"""Waking the other costs some 50 µs."""
LEAST_MEAN_BYTES = 256 << 10
"""Of the values of a batch. With smaller ones two threads wait for the interpreter's lock too
often: 32 of 128 KiB took twice as long as by one."""
PIECE_BYTES = CHUNK_BYTES
"""Of one large value. Larger ones let a thread that becomes free in the middle join too late."""


class CopyHelper:
    """Thread-safe. The thread starts with the first work for it and serves one caller at a time;
    meanwhile others copy alone, as everybody does after `close`."""

    def __init__(self, is_worthwhile: Callable[[], bool] | None = None) -> None:
        """`is_worthwhile` is asked before each use; None: whether cores are free."""
        self._cores = Cores()
        self._is_worthwhile = is_worthwhile or self._cores.are_free
        self._busy = threading.Lock()
        self._work: queue.SimpleQueue[_Shared | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    def share(self, act: Callable[[int], None], count: int, num_bytes: int) -> None:
        """Calls `act(index)` for every index below `count`, on two threads when they copy many
        bytes, `num_bytes`, and a core is free or becomes so. Raises what `act` raised first, once
        no call runs any more."""
        indices = iter(range(count))
        is_shared = num_bytes >= max(LEAST_SHARED_BYTES, count * LEAST_MEAN_BYTES)
        last = count - 1 if is_shared else 0
        for index in indices:
            may_share = index < last and not index & (index - 1)  # before 0, 1, 2, 4, 8 …
            if not (may_share and self._share_rest(act, index, indices)):
                act(index)

    def copy(
        self, destination: memoryview, source: Bytes, before_last: Callable[[], None] = do_nothing
    ) -> None:
        """As `transfer.copy`. Calls `before_last` when the last PIECE_BYTES are due."""
        if destination.nbytes < LEAST_SHARED_BYTES:
            before_last()
            copy(destination, source)
        else:
            pieces = _Pieces(destination, source, before_last)
            self.share(pieces.copy, pieces.count, destination.nbytes)

    def copy_and_checksum(
        self, destination: memoryview, source: Bytes, before_last: Callable[[], None] = do_nothing
    ) -> int:
        """As `transfer.copy_and_checksum`."""
        if destination.nbytes < LEAST_SHARED_BYTES:
            return copy_and_checksum(destination, source, before_last)
        pieces = _SummedPieces(destination, source, before_last)
        self.share(pieces.copy, pieces.count, destination.nbytes)
        return pieces.checksum()

    def close(self) -> None:
        """Returns when the work under way has ended. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._busy.acquire()  # for good: who comes later copies alone
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()
        self._cores.close()

    def after_fork(self) -> None:
        """In the child, which has no such thread."""
        self._busy, self._thread = threading.Lock(), None

    def _share_rest(self, act: Callable[[int], None], index: int, indices: Iterator[int]) -> bool:
        """From `index` on, if the other thread works for this caller now."""
        if not take(self._busy):
            return False
        try:
            if not self._is_worthwhile():
                return False
            self._run_beside(_Shared(act, chain((index,), indices)))
            return True
        finally:
            self._busy.release()

    def _run_beside(self, shared: _Shared) -> None:
        """On both threads; returns or raises when neither runs it any more, also when a signal
        handler raises meanwhile."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="moontide-help", daemon=True)
            thread.start()
            self._thread = thread
        is_running = True
        try:
            self._work.put(shared)
            shared.run()
        except BaseException as error:  # noqa: BLE001  # raised below
            shared.error = shared.error or error
        while is_running:
            try:
                with shared.running:
                    is_running = False
            except BaseException as error:  # noqa: BLE001  # raised below
                shared.error = shared.error or error
        if shared.error is not None:
            raise shared.error

    def _run(self) -> None:
        while (shared := self._work.get()) is not None:
            shared.run()
            shared.running.release()
        self._work.put(None)  # for another that was started, of which an interrupt kept us ignorant


class _Shared:
    """Indices that two threads take one by one."""

    def __init__(self, act: Callable[[int], None], indices: Iterator[int]) -> None:
        self._act = act
        self._indices = indices
        self.error: BaseException | None = None
        self.running = threading.Lock()  # until the other thread has ended
        self.running.acquire()

    def run(self) -> None:
        """Raises nothing."""
        try:
            for index in self._indices:
                if self.error is not None:
                    return
                self._act(index)
        except BaseException as error:  # noqa: BLE001  # raised again by the caller
            self.error = self.error or error


class _Pieces:
    """A value that is copied piece by piece, in any order."""

    def __init__(
        self, destination: memoryview, source: Bytes, before_last: Callable[[], None]
    ) -> None:
        self._target, self._origin = flat_pair(destination, source)
        self._before_last = before_last
        self.count = -(-len(self._target) // PIECE_BYTES)

    def copy(self, index: int) -> None:
        if index == self.count - 1:
            self._before_last()
        copy(self._piece(self._target, index), self._piece(self._origin, index))

    def _piece(self, value: memoryview, index: int) -> memoryview:
        return value[index * PIECE_BYTES : (index + 1) * PIECE_BYTES]


class _SummedPieces(_Pieces):
    """Whoever has copied a piece sums what is next, while it is in cache, unless the other does."""

    def __init__(
        self, destination: memoryview, source: Bytes, before_last: Callable[[], None]
    ) -> None:
        super().__init__(destination, source, before_last)
        self._copied = bytearray(self.count)
        self._hasher = xxh3_64()
        self._num_summed = 0
        self._summing = threading.Lock()

    def copy(self, index: int) -> None:
        super().copy(index)
        self._copied[index] = 1
        if self._summing.acquire(blocking=False):
            self._sum()
            self._summing.release()

    def checksum(self) -> int:
        """Once all are copied."""
        self._sum()
        return self._hasher.intdigest()

    def _sum(self) -> None:
        while self._num_summed < self.count and self._copied[self._num_summed]:
            index = self._num_summed
            piece = left_in_cache(
                self._piece(self._target, index), self._piece(self._origin, index)
            )
            self._hasher.update(piece)
            self._num_summed = index + 1

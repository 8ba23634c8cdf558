"""The thread that owns the log and the index's write side: it gathers operations into groups."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from .committer import Committer
from .operations import Operation, Outcome, Write

logger = logging.getLogger(__name__)
GATHER_SECONDS = 0.02
GROUP_OPERATIONS = 1000
GROUP_BYTES = 32 << 20
WORTHY_BYTES = 8 << 20
"""Writing so much takes longer than making it durable, which happens while the next group is
written: it waits for no company."""
TIDY_SECONDS = 60.0


class Writer:
    """`submit` never blocks. `publish` gets each group's outcome, on the writer's thread. Writes
    wait up to GATHER_SECONDS for company; any other operation ends that wait."""

    def __init__(
        self,
        committer: Committer,
        publish: Callable[[Outcome], None],
        *,
        max_operations: int,
        max_bytes: int,
    ) -> None:
        self._committer = committer
        self._publish = publish
        self._max_operations = max_operations
        self._max_bytes = max_bytes
        self._worthy_bytes = min(WORTHY_BYTES, max_bytes // 2)
        self._queue: deque[Operation] = deque()
        self._queued_bytes = 0
        self._bytes = 0  # queued or being written
        self._urgent = 0  # queued operations that nothing should wait for
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="nvme-writer", daemon=True)
        self._thread.start()

    @property
    def pending(self) -> int:
        return len(self._queue)

    @property
    def pending_bytes(self) -> int:
        """Queued or being written."""
        return self._bytes

    def submit(self, operation: Operation) -> bool:
        """False: the queue is full. One operation of any size is always taken when it is empty.
        Writes and other operations leave each other room: what is removed has to be hidden, however
        many writes wait."""
        size = operation.num_bytes
        is_write = isinstance(operation, Write)
        with self._changed:
            alike = len(self._queue) - self._urgent if is_write else self._urgent
            if self._closing or alike >= self._max_operations:
                return False
            if is_write and self._bytes and self._bytes + size > self._max_bytes:
                return False
            self._queue.append(operation)
            self._bytes += size
            self._queued_bytes += size
            self._urgent += not is_write
            if len(self._queue) == 1 or self._is_worthy():
                self._changed.notify()
        return True

    def close(self, timeout_s: float) -> bool:
        """Works off what is queued, for at most so long; the rest fails. Returns whether the thread
        has ended: it may still be inside a call to a slow disk."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout_s)
        with self._changed:
            rest = list(self._queue)
            self._queue.clear()
            self._queued_bytes = 0
        if rest:
            self._publish(Outcome([(operation, False) for operation in rest]))
            self._thread.join(1.0)
        return not self._thread.is_alive()

    def _run(self) -> None:
        next_tidy = time.monotonic() + TIDY_SECONDS
        while True:
            group = self._next_group(next_tidy)
            if group is None:
                self._committer.close()
                return
            writes = [operation for operation in group if isinstance(operation, Write)]
            try:
                if len(writes) < len(group):
                    self._run_group(group)
                else:
                    self._committer.write(writes, self._finish)
                if time.monotonic() >= next_tidy:
                    outcome = Outcome()
                    self._committer.tidy(outcome)
                    self._finish(outcome)
                    next_tidy = time.monotonic() + TIDY_SECONDS
            except Exception:  # boundary of the writer's thread: the group fails
                logger.exception("nvme_writer_failed operations=%d", len(group))

    def _run_group(self, group: list[Operation]) -> None:
        outcome = Outcome()
        try:
            self._committer.run(group, outcome)
        finally:
            told = {id(operation) for operation, _ in outcome.results}
            untold = [operation for operation in group if id(operation) not in told]
            outcome.results += [(operation, False) for operation in untold]
            self._finish(outcome)

    def _finish(self, outcome: Outcome) -> None:
        """Any thread."""
        with self._changed:
            self._bytes -= sum([operation.num_bytes for operation, _ in outcome.results])
        self._publish(outcome)

    def _next_group(self, next_tidy: float) -> list[Operation] | None:
        """None: closed and all done. Empty: time to tidy."""
        with self._changed:
            while not self._queue and not self._closing:
                left = next_tidy - time.monotonic()
                if left <= 0:
                    return []
                self._changed.wait(left)
            if not self._queue:
                return None
            self._gather()
            return self._take_group()

    def _gather(self) -> None:
        gathered_by = time.monotonic() + GATHER_SECONDS
        while not self._is_worthy() and (left := gathered_by - time.monotonic()) > 0:
            self._changed.wait(left)

    def _is_worthy(self) -> bool:
        """What is queued waits for no company."""
        return (
            self._closing
            or self._urgent > 0
            or len(self._queue) >= GROUP_OPERATIONS
            or self._queued_bytes >= self._worthy_bytes
        )

    def _take_group(self) -> list[Operation]:
        group: list[Operation] = []
        num_bytes = 0
        while self._queue and len(group) < GROUP_OPERATIONS and num_bytes < GROUP_BYTES:
            operation = self._queue.popleft()
            self._urgent -= not isinstance(operation, Write)
            num_bytes += operation.num_bytes
            group.append(operation)
        self._queued_bytes -= num_bytes
        return group

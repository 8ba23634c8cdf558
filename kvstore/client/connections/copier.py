"""The thread that copies block data, so that neither the engine nor the socket waits for it."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Protocol

from ...errors import StoreError

logger = logging.getLogger(__name__)


class CopyTask(Protocol):
    """`run` on the copy thread; it looks at its own cancel flag between blocks."""

    def run(self) -> None: ...


Done = Callable[[BaseException | None], None]


class Copier:
    """Tasks in order. The number of waiting ones is bounded by the number of open jobs."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[tuple[CopyTask, Done] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="moontide-copy", daemon=True)
        self._thread.start()

    def submit(self, task: CopyTask, done: Done) -> None:
        """`done(error)` is called on the copy thread when the task has surely stopped."""
        self._tasks.put((task, done))

    def close(self) -> None:
        """Returns when the tasks submitted before have ended."""
        self._tasks.put(None)
        self._thread.join()

    def _run(self) -> None:
        while item := self._tasks.get():
            task, done = item
            failure: BaseException | None = None
            try:
                task.run()
            except StoreError as error:
                failure = error
            except Exception as error:  # the boundary of one task
                logger.exception("copy failed")
                failure = error
            done(failure)

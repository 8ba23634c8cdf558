"""A thread that does what follows while the writer's thread goes on."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

logger = logging.getLogger(__name__)
Job = Callable[[bool], bool]
"""Is told whether all before it went well, and returns whether it did, too."""


class Assistant:
    """Does jobs in the order given, `most` of them waiting or being done. After one that fails it
    takes none until it is drained. Used by one thread; `name` is the thread's."""

    def __init__(self, name: str, *, most: int) -> None:
        self._most = most
        self._jobs: deque[Job] = deque()  # the first is being done
        self._kept: Job | None = None
        self._failed = False
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def has_failed(self) -> bool:
        """Since it was last drained."""
        return self._failed

    def give(self, job: Job) -> bool:
        """Waits until there is room for it. False: one has failed, and this one is not taken."""
        with self._changed:
            while len(self._jobs) >= self._most and not self._failed:
                self._changed.wait()
            if self._failed:
                return False
            self._jobs.append(job)
            self._changed.notify_all()
        return True

    def keep_last(self) -> Job | None:
        """The job given last, which is not begun until `let_go`. None: it does not wait for another
        one, or one has failed."""
        with self._changed:
            if not self._failed and len(self._jobs) > 1:
                self._kept = self._jobs[-1]
            return self._kept

    def let_go(self) -> None:
        with self._changed:
            self._kept = None
            self._changed.notify_all()

    def drain(self) -> bool:
        """Waits until all is done. False: some job has failed since the last time."""
        with self._changed:
            while self._jobs:
                self._changed.wait()
            all_well, self._failed = not self._failed, False
        return all_well

    def close(self) -> None:
        """After `drain`: the thread ends."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def _run(self) -> None:
        while (job := self._next()) is not None:
            is_good = False
            try:
                is_good = job(not self._failed)
            except Exception:  # boundary of the thread: the job fails
                logger.exception("nvme_assistant_failed name=%s", self._thread.name)
            with self._changed:
                self._failed = self._failed or not is_good
                self._jobs.popleft()
                self._changed.notify_all()

    def _next(self) -> Job | None:
        """None: closed."""
        with self._changed:
            while not self._closing and (not self._jobs or self._jobs[0] is self._kept):
                self._changed.wait()
            return self._jobs[0] if self._jobs else None

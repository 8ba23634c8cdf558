"""A thread that does one thing while the writer's thread goes on with the next."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)
Job = Callable[[], bool]
"""False: it failed, and what builds on it must not be done."""


class Assistant:
    """Does one job at a time, in the order given. After one that fails it takes none until it is
    drained. Used by one thread, and given a name of the system's length (15)."""

    def __init__(self, name: str) -> None:
        self._job: Job | None = None
        self._failed = False
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_idle(self) -> bool:
        """Whether `give` would not wait."""
        return self._job is None

    @property
    def has_failed(self) -> bool:
        """Since it was last drained."""
        return self._failed

    def give(self, job: Job) -> bool:
        """Waits until the job before is done. False: that failed, and this one is not taken."""
        with self._changed:
            self._wait()
            if self._failed:
                return False
            self._job = job
            self._changed.notify_all()
        return True

    def drain(self) -> bool:
        """Waits until all is done. False: some job has failed since the last time."""
        with self._changed:
            self._wait()
            all_well, self._failed = not self._failed, False
        return all_well

    def close(self) -> None:
        """After `drain`: the thread ends."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def _wait(self) -> None:
        while self._job is not None:
            self._changed.wait()

    def _run(self) -> None:
        while (job := self._next()) is not None:
            is_good = False
            try:
                is_good = job()
            except Exception:  # boundary of the thread: the job fails
                logger.exception("nvme_assistant_failed name=%s", self._thread.name)
            with self._changed:
                self._failed = not is_good
                self._job = None
                self._changed.notify_all()

    def _next(self) -> Job | None:
        """None: closed."""
        with self._changed:
            while self._job is None and not self._closing:
                self._changed.wait()
            return self._job

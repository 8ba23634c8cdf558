"""One thread that ends at its deadline what nothing else has ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Deadlines:
    """Calls `end_due(now)` when a deadline has passed; it answers the next one. The thread starts
    with the first deadline and ends with `close`."""

    def __init__(self, end_due: Callable[[float], float | None], *, name: str) -> None:
        self._end_due = end_due
        self._name = name
        self._changed = threading.Condition()
        self._next: float | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    def arm(self, deadline: float) -> None:
        """What has this deadline can be found by `end_due` already."""
        following = self._next
        if following is not None and following <= deadline:
            return  # should it pass now, `end_due` tells of this one
        with self._changed:
            if self._closed or (self._next is not None and self._next <= deadline):
                return
            self._next = deadline
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while self._wait():
            following = self._end_due(time.monotonic())
            if following is not None:
                self.arm(following)

    def _wait(self) -> bool:
        """Until the next deadline has passed; False when closed."""
        with self._changed:
            while not self._closed:
                remaining = None if self._next is None else self._next - time.monotonic()
                if remaining is not None and remaining <= 0:
                    self._next = None
                    return True
                self._changed.wait(remaining)
            return False

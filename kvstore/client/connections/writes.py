"""Which writes into granted memory are running, so that a new connection can say truthfully that
none of an earlier one is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ...errors import StoreTimeout
from ..deadline import Deadline
from .frames import OwnerLost


class RunningWrites:
    """Counts writes by the connection (its serial number) whose reservations they fill.
    Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a finalizer may end a connection while it is held
        self._changed = threading.Condition(self._lock)
        self._running: dict[int, int] = {}
        self._live: set[int] = set()

    def begin_connection(self, connection: int) -> None:
        with self._changed:
            self._live.add(connection)

    def end_connection(self, connection: int) -> None:
        """It is closed: what it reserved is in quarantine, and no new write may fill it."""
        with self._changed:
            self._live.discard(connection)

    @contextmanager
    def of(self, connection: int) -> Iterator[None]:
        """`begin` and `end`."""
        self.begin(connection)
        try:
            yield
        finally:
            self.end(connection)

    def begin(self, connection: int) -> None:
        """Raises OwnerLost when the connection has ended. Only for the copy itself: a new
        connection waits for its end, so a request made before `end` would wait for ever."""
        with self._lock:
            if connection not in self._live:
                raise OwnerLost("the connection that reserved the space is gone; try again")
            self._running[connection] = self._running.get(connection, 0) + 1

    def end(self, connection: int) -> None:
        with self._lock:
            running = self._running.pop(connection) - 1
            if running:
                self._running[connection] = running
            elif connection not in self._live:  # others are not waited for
                self._changed.notify_all()

    def wait_quiesced(self, deadline: Deadline) -> None:
        """Returns once no write of an ended connection runs. Raises StoreTimeout."""
        with self._changed:
            if not self._changed.wait_for(
                lambda: self._running.keys() <= self._live, deadline.remaining()
            ):
                raise StoreTimeout(
                    f"writes of an earlier connection still ran after {deadline.timeout_s:g} s"
                )

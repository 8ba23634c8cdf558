"""Which writes into granted memory are running, so that a new connection can say truthfully that
none of an earlier one is."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ...errors import StoreTimeout
from ..deadline import Deadline
from .frames import OwnerLost

LOOK_SECONDS = 0.001


class RunningWrites:
    """Knows each thread's write by the connection (its serial number) whose reservation it fills. A
    thread runs one at a time: so its next one, or its wait, corrects what an interrupt between a
    write and its `end` left behind. Thread-safe, without a lock that an interrupt could leave
    locked."""

    def __init__(self) -> None:
        self._running: dict[int, int] = {}  # by thread
        self._live: set[int] = set()

    def begin_connection(self, connection: int) -> None:
        self._live.add(connection)

    def end_connection(self, connection: int) -> None:
        """It is closed: what it reserved is in quarantine, and no new write may fill it."""
        self._live.discard(connection)

    @contextmanager
    def of(self, connection: int) -> Iterator[None]:
        """`begin` and `end`."""
        self.begin(connection)
        try:
            yield
        finally:
            self.end()

    def begin(self, connection: int) -> None:
        """Raises OwnerLost when the connection has ended. Only for the copy itself: a new
        connection waits for its end, so a request made before `end` would wait for ever."""
        thread = threading.get_ident()
        self._running[thread] = connection  # first: who ends the connection now waits for it
        if connection not in self._live:
            del self._running[thread]
            raise OwnerLost("the connection that reserved the space is gone; try again")

    def end(self) -> None:
        """This thread's write has stopped."""
        self._running.pop(threading.get_ident(), None)

    def wait_quiesced(self, deadline: Deadline) -> None:
        """Returns once no write of an ended connection runs. Raises StoreTimeout."""
        self.end()
        while not self._live.issuperset(self._running.values()):
            if not deadline.remaining():
                raise StoreTimeout(
                    f"writes of an earlier connection still ran after {deadline.timeout_s:g} s"
                )
            time.sleep(LOOK_SECONDS)

"""Runs: stretches of granted segments that this client has reserved and cuts entries from.

  take ──► fill: bump-allocate, copy, xxh3 ──► CommitRun, one for a batch ──► give back ──► idle
    ▲ ReserveRun where no idle one has room                                             │
    └───────────────────────────────────────────────────────────────────────────────────┘
A thread has a run to itself while it uses it. An idle one is given up after IDLE_SECONDS.
"""

from __future__ import annotations

import threading
import time

from moontide.transfer.types import PAGE_BYTES, align_up

from .. import wire
from ..errors import InvalidRequest, StoreTimeout, StoreUnavailable
from .connections.attachment import Attachment, Holder
from .connections.link import Link
from .deadline import Deadline
from .spaces import Space

IDLE_SECONDS = 1.0
MAX_IDLE_RUNS = 4
REFUSED_SECONDS = 0.1
"""For so long no run is asked for after the daemon had none."""


class Run:
    """For one thread at a time. Owned by `connection`."""

    __slots__ = ("attachment", "connection", "front", "holder", "idle_since", "num_bytes", "space")

    def __init__(
        self, attachment: Attachment, connection: int, space: Space, num_bytes: int
    ) -> None:
        self.attachment = attachment
        self.holder = Holder(attachment)  # of whose run it is now
        self.connection = connection
        self.space = space
        self.num_bytes = num_bytes
        self.front = 0  # behind all that was cut off
        self.idle_since = 0.0

    @property
    def room(self) -> int:
        return self.num_bytes - (self.front + PAGE_BYTES - 1 & -PAGE_BYTES)


class Runs:
    """Of one client; thread-safe."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._lock = threading.Lock()
        self._idle: list[Run] = []
        self._ended: list[Run] = []  # the daemon is still to be told
        self._refused_until = 0.0

    def take(self, least: int, wanted: int, deadline: Deadline) -> Run | None:
        """A run with room for `least` bytes; a new one has room for `wanted` if the daemon has it.
        None: it has none."""
        run = self._take_idle(least)
        if run is not None or time.monotonic() < self._refused_until:
            return run
        self._tell_ended(deadline)
        run = self._reserve(wanted, deadline)
        if run is None:
            self.give_up_idle(time.monotonic())  # they count for this client's share
            run = self._reserve(least, deadline)
        if run is None:
            self._refused_until = time.monotonic() + REFUSED_SECONDS
        return run

    def give_back(self, run: Run) -> None:
        """It is not used any more, and everything cut off is committed."""
        if not run.room:
            if run.front < run.num_bytes:
                self.give_up(run)
            return
        run.idle_since = time.monotonic()
        with self._lock:
            self._idle.append(run)
            surplus = self._idle.pop(0) if len(self._idle) > MAX_IDLE_RUNS else None
        if surplus is not None:
            self.give_up(surplus)

    def give_up(self, run: Run) -> None:
        """Its writer has stopped. Without waiting: what the daemon is not told now is told later,
        or ends with the connection."""
        run.holder.end()
        try:
            self._link.tell(run.connection, _abort(run))
        except StoreUnavailable:
            if self._link.connection == run.connection:
                with self._lock:
                    self._ended.append(run)

    def give_up_idle(self, idle_before: float) -> None:
        """Those that were last used before."""
        with self._lock:
            old = [run for run in self._idle if run.idle_since <= idle_before]
            self._idle = [run for run in self._idle if run.idle_since > idle_before]
            old += self._ended
            self._ended = []
        for run in old:
            self.give_up(run)

    def _tell_ended(self, deadline: Deadline) -> None:
        """What is left of them would split the room that the next one needs."""
        connection = self._link.connection
        with self._lock:
            ended = [run for run in self._ended if run.connection == connection]
            self._ended = []
        if not ended:
            return
        try:
            self._link.act_on(connection, _abort(*ended), deadline)
        except StoreUnavailable:
            return  # they have ended with their connection
        except StoreTimeout:
            with self._lock:
                self._ended += ended
            raise

    def _take_idle(self, least: int) -> Run | None:
        """The last used one that has room. Those of ended connections have ended with them."""
        connection = self._link.connection
        with self._lock:
            if not self._idle:
                return None
            last = self._idle[-1]
            if last.connection == connection and last.room >= least:
                return self._idle.pop()
            self._idle = [run for run in self._idle if run.connection == connection]
            for index in reversed(range(len(self._idle))):
                if self._idle[index].room >= least:
                    return self._idle.pop(index)
        return None

    def _reserve(self, num_bytes: int, deadline: Deadline) -> Run | None:
        num_bytes = align_up(num_bytes, PAGE_BYTES)
        try:
            answer = self._link.ask(wire.ReserveRun(num_bytes), deadline)
        except InvalidRequest:  # another daemon answers by now, without runs or with smaller ones
            return None
        assert isinstance(answer.reply, wire.Reserved)
        space = Space.of(answer.reply.results[0])
        if space is None:
            return None
        return Run(answer.attachment, answer.connection, space, num_bytes)


def _abort(*runs: Run) -> wire.Abort:
    return wire.Abort([run.space.slot for run in runs], [run.space.generation for run in runs])

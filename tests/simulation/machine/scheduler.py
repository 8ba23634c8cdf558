"""One thread at a time, in an order and at moments that a seed decides.

Threads are real ones, so that any code runs in them unchanged, but only the one that holds the
baton runs. It gives the baton away where an operating system would let a thread wait: then the next
one is drawn among those that are ready, and when none is, the clock jumps to the next event. So the
same seed gives the same run, and a minute of waiting costs nothing.

    started ──► ready ──drawn──► running ──waits──► parked ──woken, or its time has come──► ready
                                    └──returns──► finished
"""

from __future__ import annotations

import _thread
import heapq
import itertools
import random
import threading
import traceback
from collections.abc import Callable
from hashlib import blake2b
from typing import ClassVar

START_SECONDS = 1000.0
READ_SECONDS = 1e-6
"""What reading the clock takes: whoever polls it gets on."""

Act = Callable[[], None]


class Killed(SystemExit):
    """Ends a thread whose process was killed, once the run is over."""


class Stuck(Exception):
    """Nothing can happen any more, or not before the end of time."""


class Process:
    """What ends together. A killed one does nothing more; a stopped one nothing for now."""

    def __init__(self, scheduler: Scheduler, name: str, host: str, pid: int) -> None:
        self.name = name
        self.host = host
        self.pid = pid
        self.is_killed = False
        self.is_stopped = False
        self.lost_power = False  # it ended without a word to anybody
        self.on_kill: list[Act] = []
        self.threads: list[Thread] = []
        self._scheduler = scheduler

    def kill(self) -> None:
        """As SIGKILL: no line of its code runs any more."""
        if not self.is_killed:
            self.is_killed = True
            for act in self.on_kill:
                act()

    def stop(self) -> None:
        """As SIGSTOP."""
        self.is_stopped = True

    def resume(self) -> None:
        """As SIGCONT."""
        self.is_stopped = False
        for thread in self.threads:
            if thread.is_held:
                thread.is_held = False
                self._scheduler.make_ready(thread)


class _Carrier:
    """A real thread that carries one thread after another, in any run."""

    idle: ClassVar[list[_Carrier]] = []

    def __init__(self) -> None:
        self.baton = _thread.allocate_lock()
        self.baton.acquire()
        self.work: Act | None = None
        threading.Thread(target=self._run, name="simulated", daemon=True).start()

    def _run(self) -> None:
        while True:
            self.baton.acquire()
            work, self.work = self.work, None
            assert work is not None
            work()
            del work  # and with it all that belonged to its world


class Thread:
    """One line of control of a process; `scheduler.start` starts it."""

    def __init__(self, process: Process, name: str, run: Act, number: int) -> None:
        self.process = process
        self.name = name
        self.run = run
        self.number = number
        self.is_finished = False
        self.is_held = False  # ready, but its process is stopped
        self.is_ready = False
        self.timed_out = False
        self.wait_number = 0
        self.joiners: dict[Thread, None] = {}
        self.baton = _thread.allocate_lock()
        self.baton.acquire()


class Scheduler:
    """`errors`: what nothing caught, and where."""

    def __init__(self, seed: int, *, until: float = 3600.0) -> None:
        self.rng = random.Random(seed)
        self.now = START_SECONDS
        self.digest = blake2b(digest_size=8)
        self.switches = 0
        self.errors: list[str] = []
        self.is_over = False
        self._ends_at = START_SECONDS + until
        self._events: list[tuple[float, int, Act]] = []
        self._order = itertools.count()
        self._pids = itertools.count(100)
        self._numbers = itertools.count(1)
        self._ready: list[Thread] = []
        self._stuck: Stuck | None = None
        self.processes: list[Process] = []
        driver = self.new_process("driver", "driver")
        self._main = Thread(driver, "main", lambda: None, 0)
        self.current = self._main

    # -- time ---------------------------------------------------------------------

    def read_clock(self) -> float:
        self.now += READ_SECONDS
        return self.now

    def call_at(self, at: float, act: Act) -> None:
        """`act` may wake threads; it must not wait."""
        heapq.heappush(self._events, (at, next(self._order), act))

    def call_later(self, seconds: float, act: Act) -> None:
        self.call_at(self.now + seconds, act)

    def sleep(self, seconds: float) -> None:
        self.wait(seconds)

    # -- processes and threads ----------------------------------------------------

    def new_process(self, name: str, host: str) -> Process:
        process = Process(self, name, host, next(self._pids))
        self.processes.append(process)
        return process

    def process_of(self, pid: int) -> Process | None:
        return next((each for each in self.processes if each.pid == pid), None)

    def start(self, process: Process, name: str, run: Act) -> Thread:
        if self.is_over:
            raise Killed
        thread = Thread(process, f"{process.name}/{name}", run, next(self._numbers))
        process.threads = [each for each in process.threads if not each.is_finished]
        process.threads.append(thread)
        carrier = _Carrier.idle.pop() if _Carrier.idle else _Carrier()
        thread.baton = carrier.baton
        carrier.work = lambda: self._carry(carrier, thread)
        self.make_ready(thread)
        return thread

    def _carry(self, carrier: _Carrier, thread: Thread) -> None:
        self.current = thread
        try:
            if not self.is_over:
                thread.run()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001  # the thread boundary: reported
            if not thread.process.is_killed:
                self.report(thread.name, error)
        thread.is_finished = True
        for joiner in thread.joiners:
            self.make_ready(joiner)
        _Carrier.idle.append(carrier)
        self._hand_on(self._next())

    def join(self, thread: Thread, seconds: float | None = None) -> bool:
        """Whether it has finished."""
        ends_at = None if seconds is None else self.now + seconds
        while not thread.is_finished:
            thread.joiners[self.current] = None
            woken = self.wait(None if ends_at is None else max(ends_at - self.now, 0.0))
            thread.joiners.pop(self.current, None)
            if not woken:
                break
        return thread.is_finished

    def report(self, where: str, error: BaseException) -> None:
        """What nothing of ours caught."""
        self.errors.append(f"{where}: {''.join(traceback.format_exception(error))}")

    # -- the baton ----------------------------------------------------------------

    def wait(self, seconds: float | None = None) -> bool:
        """Gives the baton away until this thread is made ready, or the time has passed: then
        False."""
        me = self.current
        if self.is_over and me is not self._main:
            raise Killed
        me.wait_number += 1
        me.timed_out = False
        if seconds is not None:
            number = me.wait_number
            self.call_later(max(seconds, 0.0), lambda: self._time_out(me, number))
        self._switch(me)
        me.wait_number += 1  # its timer has nothing to do any more
        return not me.timed_out

    def give_way(self) -> None:
        """Others that are ready may run first."""
        me = self.current
        if self._ready and not self.is_over:
            self.make_ready(me)
            self._switch(me)

    def make_ready(self, thread: Thread) -> None:
        if not thread.is_ready and not thread.is_finished:
            thread.is_ready = True
            self._ready.append(thread)

    def _time_out(self, thread: Thread, number: int) -> None:
        if thread.wait_number == number and not thread.is_ready:
            thread.timed_out = True
            self.make_ready(thread)

    def _switch(self, me: Thread) -> None:
        following = self._next()
        if following is not me:
            self._hand_on(following)
            me.baton.acquire()
            self.current = me
        me.is_ready = False
        if me is self._main:
            if self._stuck is not None:
                raise self._stuck
        elif self.is_over:
            raise Killed

    def _hand_on(self, thread: Thread) -> None:
        thread.baton.release()

    def _next(self) -> Thread:
        if self.is_over:
            return self._main
        while True:
            while self._events and self._events[0][0] <= self.now:
                heapq.heappop(self._events)[2]()
            if (thread := self._draw()) is not None:
                self.switches += 1
                self.digest.update(b"%d %.6f\n" % (thread.number, self.now))
                return thread
            if not self._events or self._events[0][0] > self._ends_at:
                self._stuck = Stuck(f"at {self.now - START_SECONDS:.3f} s: {self.describe()}")
                return self._main
            self.now = self._events[0][0]

    def _draw(self) -> Thread | None:
        while self._ready:
            index = self.rng.randrange(len(self._ready))
            self._ready[index], self._ready[-1] = self._ready[-1], self._ready[index]
            thread = self._ready.pop()
            thread.is_ready = False
            if thread.process.is_killed:
                continue
            if not thread.process.is_stopped:
                return thread
            thread.is_held = True
        return None

    def describe(self) -> str:
        waiting = [
            each.name
            for process in self.processes
            if not process.is_killed
            for each in process.threads
            if not each.is_finished
        ]
        return f"waiting: {', '.join(waiting)}"

    # -- the end ------------------------------------------------------------------

    def end(self) -> None:
        """Ends every thread that has not: none of them can do anything more."""
        self.is_over = True
        for process in self.processes:
            process.is_killed = True
        for process in self.processes:
            for thread in process.threads:
                if not thread.is_finished:
                    self._hand_on(thread)
                    self._main.baton.acquire()
                    self.current = self._main
        assert all(t.is_finished for p in self.processes for t in p.threads)

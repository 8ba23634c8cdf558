"""A world of one seed: its operating system in place of the real one under our code.

No class of ours is replaced. While a world is entered, the modules of the system that our modules
(and asyncio and aiohttp) imported lead here: time, sockets, threads, descriptors and randomness are
the world's, all else is real."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import fcntl
import functools
import gc
import importlib
import os
import pkgutil
import queue
import random
import secrets
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import lmdb

from moontide.kvstore.nvme.index_scan import scan

from . import threads
from .disk import Disks
from .files import FIRST_DESCRIPTOR, Epoll, EventFile, Files, Poll, ProcessFile, Selector
from .loop import Loop
from .network import Network
from .scheduler import Process, Scheduler
from .scheduler import Thread as Line
from .sockets import Socket

EPOCH_SECONDS = 1.8e9
_FOREIGN = (
    "asyncio.base_events",
    "asyncio.selector_events",
    "aiohappyeyeballs.impl",
    "http.client",
)
"""Of their imports only `socket` leads here: they are told the time by their loop."""


class Facade:
    """A module, with some of its names leading elsewhere."""

    def __init__(self, module: ModuleType, **names: Any) -> None:
        self.__dict__.update(names)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class World:
    def __init__(self, seed: int) -> None:
        self.scheduler = Scheduler(seed)
        self.rng = self.scheduler.rng
        self.files = Files(self.scheduler)
        self.network = Network(self.scheduler)
        self.disks = Disks(self.scheduler)
        self._loops: dict[Process, Loop] = {}
        self._locks: dict[Process, list[int]] = {}
        self._finalizers: list[weakref.finalize[..., Any]] = []
        self._replaced = self._replacements()

    # -- what happens in it -----------------------------------------------------------

    @property
    def now(self) -> float:
        return self.scheduler.now

    def process(self, name: str, host: str) -> Process:
        return self.scheduler.new_process(name, host)

    def run(self, process: Process, call: Callable[[], object], name: str = "main") -> Line:
        """Starts a thread of the process; `join` waits for it."""
        return self.scheduler.start(process, name, lambda: _void(call()))

    def run_loop(self, process: Process, main: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """In a thread of the process: as `asyncio.run`."""
        loop = self._loops[process] = Loop(self.files)

        async def whole() -> None:
            try:
                await main()
            finally:
                await loop.end_others()

        try:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(whole())
        finally:
            asyncio.set_event_loop(None)  # the real thread goes on to other worlds

    def terminate(self, process: Process) -> None:
        """As SIGTERM."""
        self._loops[process].send_signal(signal.SIGTERM)

    def kill(self, process: Process) -> None:
        process.kill()
        self.disks.killed(process)
        for descriptor in self._locks.pop(process, []):
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)

    def lose_power(self, host: str) -> None:
        """All that runs there ends, and nobody is told; until `restore_power`."""
        self.network.take_down(host)
        for process in self.scheduler.processes:
            if process.host == host and not process.is_killed:
                process.lost_power = True
                self.kill(process)
                self.disks.lost_power(process, self.rng)

    def restore_power(self, host: str) -> None:
        self.network.bring_up(host)

    # -- the system -------------------------------------------------------------------

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Only within may anything of ours be called."""
        changed = list(self._lead_here())
        collects = gc.isenabled()
        gc.disable()  # finalizers run where they would in no other run
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what was killed has closed nothing
                try:
                    yield
                finally:
                    self.scheduler.end()
                    for process in self.scheduler.processes:
                        self.disks.killed(process)
                    self._loops.clear()
                    for finalizer in self._finalizers:  # what was killed finalizes nothing
                        finalizer.detach()
                    _clear_caches()
                    gc.collect()
                    self.files.close_real(set(self.files.real))
        finally:
            for module, name, value in changed:
                setattr(module, name, value)
            if collects:
                gc.enable()

    def _lead_here(self) -> Iterator[tuple[ModuleType, str, Any]]:
        everywhere = self._replaced
        only_sockets = {id(socket): everywhere[id(socket)]}
        for name, module in list(sys.modules.items()):
            if name.startswith("moontide."):
                leads = everywhere
            elif name in _FOREIGN:
                leads = only_sockets
            else:
                continue
            for variable, value in list(vars(module).items()):
                if id(value) in leads:
                    yield module, variable, value
                    setattr(module, variable, leads[id(value)])

    def _replacements(self) -> dict[int, Any]:
        """By identity of what they replace."""
        leads: dict[int, Any] = {
            id(facade._module): facade
            for facade in (*self._of_time_and_threads(), *self._of_descriptors())
        }
        leads[id(time.monotonic)] = self.scheduler.read_clock
        executor = functools.partial(threads.Executor, self.scheduler)
        leads[id(concurrent.futures.ThreadPoolExecutor)] = executor
        return leads

    def _of_time_and_threads(self) -> tuple[Facade, ...]:
        of, scheduler = functools.partial, self.scheduler
        return (
            Facade(
                time,
                monotonic=scheduler.read_clock,
                perf_counter=scheduler.read_clock,
                time=lambda: EPOCH_SECONDS + scheduler.now,
                clock_gettime=lambda clock: scheduler.now,
                sleep=scheduler.sleep,
            ),
            Facade(
                threading,
                Lock=of(threads.Lock, scheduler),
                RLock=of(threads.RLock, scheduler),
                Condition=of(threads.Condition, scheduler),
                Event=of(threads.Event, scheduler),
                Thread=of(threads.Thread, scheduler),
            ),
            Facade(queue, SimpleQueue=of(threads.SimpleQueue, scheduler)),
            Facade(secrets, token_bytes=self.rng.randbytes, token_hex=self._token_hex),
            Facade(
                random,
                uniform=self.rng.uniform,
                random=self.rng.random,
                choice=self.rng.choice,
                randrange=self.rng.randrange,
            ),
        )

    def _of_descriptors(self) -> tuple[Facade, ...]:
        of = functools.partial
        scheduler, files, network = self.scheduler, self.files, self.network
        return (
            Facade(
                socket,
                socket=of(Socket, files, network),
                create_connection=self._create_connection,
            ),
            Facade(select, poll=of(Poll, files), epoll=of(Epoll, files)),
            Facade(selectors, DefaultSelector=of(Selector, files)),
            Facade(fcntl, flock=self._flock),
            Facade(gc, freeze=_nothing, collect=_nothing),
            Facade(weakref, finalize=self._finalize),
            Facade(lmdb, open=self.disks.open_environment),
            Facade(subprocess, run=_scan_index),
            Facade(
                os,
                getpid=lambda: scheduler.current.process.pid,
                eventfd=lambda count, flags=0: EventFile(files, count).descriptor,
                eventfd_write=lambda descriptor, count: files.event(descriptor).add(count),
                eventfd_read=lambda descriptor: files.event(descriptor).take(),
                pidfd_open=self._pidfd_open,
                set_inheritable=self._set_inheritable,
                open=lambda *arguments: files.opened(os.open(*arguments)),
                memfd_create=lambda *arguments: files.opened(os.memfd_create(*arguments)),
                fdopen=self._fdopen,
                close=self._close,
                pwritev=self.disks.pwritev,
                pwrite=self.disks.pwrite,
                fdatasync=self.disks.sync,
                sched_getaffinity=lambda pid: {0},
            ),
        )

    def _create_connection(
        self, address: tuple[str, int], timeout: float | None = None, source_address: None = None
    ) -> Socket:
        sock = Socket(self.files, self.network)
        try:
            sock.settimeout(timeout)
            sock.connect(address)
        except BaseException:
            sock.close()
            raise
        return sock

    def _finalize(
        self, of: object, call: Callable[..., Any], *arguments: Any
    ) -> weakref.finalize[..., Any]:
        finalizer = weakref.finalize(of, call, *arguments)
        self._finalizers.append(finalizer)
        return finalizer

    def _token_hex(self, num_bytes: int = 16) -> str:
        return self.rng.randbytes(num_bytes).hex()

    def _flock(self, descriptor: int, operation: int) -> None:
        fcntl.flock(descriptor, operation)
        self._locks.setdefault(self.scheduler.current.process, []).append(descriptor)

    def _pidfd_open(self, pid: int) -> int:
        process = self.scheduler.process_of(pid)
        if process is None or process.is_killed:
            raise ProcessLookupError(3, "No such process")
        return ProcessFile(self.files, process).descriptor

    def _set_inheritable(self, descriptor: int, inheritable: bool) -> None:
        if descriptor < FIRST_DESCRIPTOR:
            os.set_inheritable(descriptor, inheritable)

    def _fdopen(self, descriptor: int, *arguments: Any) -> Any:
        self.files.real.discard(descriptor)  # the file's from now on
        return os.fdopen(descriptor, *arguments)

    def _close(self, descriptor: int) -> None:
        if descriptor >= FIRST_DESCRIPTOR:
            self.files.close(descriptor)
            return
        held = self._locks.get(self.scheduler.current.process, [])
        if descriptor in held:
            held.remove(descriptor)
        self.files.close_real((descriptor,))


def _scan_index(command: Sequence[str], **options: object) -> subprocess.CompletedProcess[bytes]:
    """The one child our code starts, here: it looks at an index that may be damaged."""
    return subprocess.CompletedProcess(command, scan(Path(command[-1])))


def _nothing() -> None:
    """Collecting is done when the world is over."""


def import_all(*packages: str) -> None:
    """Before a world is entered: what is imported later would lead to the real system."""
    for name in packages:
        package = importlib.import_module(name)
        for found in pkgutil.walk_packages(package.__path__, f"{name}."):
            importlib.import_module(found.name)


def _clear_caches() -> None:
    """aiohttp remembers the handlers of every application, which hold all of their daemon."""
    for name, module in list(sys.modules.items()):
        if name.startswith("aiohttp."):
            for value in vars(module).values():
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()


def _void(result: object) -> None:
    """What a thread returns is nobody's."""

"""Descriptors that no kernel knows: eventfds, pidfds and sockets, and waiting for them."""

from __future__ import annotations

import os
import select
import selectors
from collections.abc import Iterable
from typing import Any, Protocol

from .scheduler import Process, Scheduler
from .threads import Waiters

FIRST_DESCRIPTOR = 1_000_000
"""Beyond any that the kernel gives."""


class HasFileno(Protocol):
    def fileno(self) -> int: ...


class File:
    """Something open. Tells who waits for it when it changes."""

    is_readable = False
    is_writable = False
    is_hung_up = False

    def __init__(self, files: Files) -> None:
        self.waiters = Waiters(files.scheduler)
        self.selectors: dict[Selector, None] = {}
        self.descriptor = files.add(self)

    def changed(self) -> None:
        self.waiters.wake()
        for selector in self.selectors:
            selector.look_at(self.descriptor)

    def close(self) -> None:
        """The last descriptor of it is gone."""


class EventFile(File):
    def __init__(self, files: Files, count: int) -> None:
        super().__init__(files)
        self.count = count
        self.is_readable = bool(count)
        self.is_writable = True

    def add(self, count: int) -> None:
        self.count += count
        self.is_readable = True
        self.changed()

    def take(self) -> int:
        if not self.count:
            raise BlockingIOError("eventfd is empty")
        count, self.count = self.count, 0
        self.is_readable = False
        return count


class ProcessFile(File):
    """Readable when the process has ended."""

    def __init__(self, files: Files, process: Process) -> None:
        super().__init__(files)
        process.on_kill.append(self._ended)

    def _ended(self) -> None:
        self.is_readable = True
        self.changed()


class Files:
    """All that is open in one world. `real` are descriptors that the kernel gave: what killed
    processes leave of them is closed when the world is over."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.real: set[int] = set()
        self._open: dict[int, File] = {}
        self._next = FIRST_DESCRIPTOR

    def opened(self, descriptor: int) -> int:
        self.real.add(descriptor)
        return descriptor

    def duplicate(self, descriptor: int) -> int:
        return self.opened(os.dup(descriptor))

    def close_real(self, descriptors: Iterable[int]) -> None:
        for descriptor in descriptors:
            self.real.discard(descriptor)
            os.close(descriptor)

    def add(self, file: File) -> int:
        self._next += 1
        self._open[self._next] = file
        return self._next

    def close(self, descriptor: int) -> None:
        file = self._open.pop(descriptor, None)
        if file is None:
            raise OSError(9, os.strerror(9))
        file.close()

    def forget(self, descriptor: int) -> None:
        self._open.pop(descriptor, None)

    def get(self, descriptor: int) -> File | None:
        return self._open.get(descriptor)

    def event(self, descriptor: int) -> EventFile:
        file = self._open.get(descriptor)
        if not isinstance(file, EventFile):
            raise OSError(9, os.strerror(9))
        return file

    def ready(self, wanted: dict[int, int]) -> list[tuple[int, int]]:
        """(descriptor, poll bits) of those that are, in a drawn order."""
        found = []
        for descriptor, mask in wanted.items():
            file = self._open.get(descriptor)
            if file is None:
                continue
            bits = select.POLLHUP if file.is_hung_up else 0
            if mask & select.POLLIN and file.is_readable:
                bits |= select.POLLIN
            if mask & select.POLLOUT and file.is_writable:
                bits |= select.POLLOUT
            if bits:
                found.append((descriptor, bits))
        if len(found) > 1:
            self.scheduler.rng.shuffle(found)
        return found

    def await_ready(self, wanted: dict[int, int], seconds: float | None) -> list[tuple[int, int]]:
        """As `poll`."""
        scheduler = self.scheduler
        found = self.ready(wanted)
        if found or (seconds is not None and seconds <= 0):
            return found
        waiters = [file.waiters for fd in wanted if (file := self._open.get(fd)) is not None]
        ends_at = None if seconds is None else scheduler.now + seconds
        while True:
            me = scheduler.current
            for each in waiters:
                each.add(me)
            try:
                woken = scheduler.wait(
                    None if ends_at is None else max(ends_at - scheduler.now, 0.0)
                )
            finally:
                for each in waiters:
                    each.discard(me)
            found = self.ready(wanted)
            if found or not woken:
                return found


def _descriptor(of: HasFileno | int) -> int:
    return of if isinstance(of, int) else of.fileno()


class Poll:
    """`select.poll`: milliseconds."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._wanted: dict[int, int] = {}

    def register(self, of: HasFileno | int, mask: int = select.POLLIN) -> None:
        self._wanted[_descriptor(of)] = mask

    modify = register

    def unregister(self, of: HasFileno | int) -> None:
        del self._wanted[_descriptor(of)]

    def poll(self, milliseconds: float | None = None) -> list[tuple[int, int]]:
        seconds = None if milliseconds is None or milliseconds < 0 else milliseconds / 1e3
        self._files.scheduler.give_way()
        return self._files.await_ready(self._wanted, seconds)


class Epoll(Poll):
    """`select.epoll`: seconds."""

    def poll(self, seconds: float | None = None, most: int = -1) -> list[tuple[int, int]]:
        patience = None if seconds is None or seconds < 0 else seconds
        self._files.scheduler.give_way()
        found = self._files.await_ready(self._wanted, patience)
        return found if most < 0 else found[:most]

    def close(self) -> None:
        self._wanted.clear()


class Selector(selectors._BaseSelectorImpl):
    """`selectors.DefaultSelector`: looks at what changed, or was ready. `wake` ends a `select` from
    another thread."""

    def __init__(self, files: Files) -> None:
        super().__init__()
        self._files = files
        self._woken = False
        self._waiters = Waiters(files.scheduler)
        self._looked_at: dict[int, None] = {}

    def register(
        self, fileobj: HasFileno | int, events: int, data: Any = None
    ) -> selectors.SelectorKey:
        key = super().register(fileobj, events, data)
        if (file := self._files.get(key.fd)) is not None:
            file.selectors[self] = None
        self._looked_at[key.fd] = None
        return key

    def unregister(self, fileobj: HasFileno | int) -> selectors.SelectorKey:
        key = super().unregister(fileobj)
        if (file := self._files.get(key.fd)) is not None:
            file.selectors.pop(self, None)
        self._looked_at.pop(key.fd, None)
        return key

    def look_at(self, descriptor: int) -> None:
        """It changed, or is closed."""
        if descriptor in self._fd_to_key:
            self._looked_at[descriptor] = None
            self._waiters.wake()

    def wake(self) -> None:
        self._woken = True
        self._waiters.wake()

    def select(self, timeout: float | None = None) -> Iterable[tuple[selectors.SelectorKey, int]]:
        self._files.scheduler.give_way()
        found = self._ready()
        if not found and not self._woken and (timeout is None or timeout > 0):
            self._waiters.wait(timeout)
            found = self._ready()
        self._woken = False
        return [
            (self._fd_to_key[fd], events)
            for fd, bits in found
            if (events := _events(bits) & (self._fd_to_key[fd].events))
        ]

    def _ready(self) -> list[tuple[int, int]]:
        keys = self._fd_to_key
        found = self._files.ready({fd: _mask(keys[fd].events) for fd in self._looked_at})
        self._looked_at = dict.fromkeys(fd for fd, _ in found)
        return found


def _mask(events: int) -> int:
    return (select.POLLIN if events & selectors.EVENT_READ else 0) | (
        select.POLLOUT if events & selectors.EVENT_WRITE else 0
    )


def _events(bits: int) -> int:
    read = bits & (select.POLLIN | select.POLLHUP)
    write = bits & (select.POLLOUT | select.POLLHUP)
    return (selectors.EVENT_READ if read else 0) | (selectors.EVENT_WRITE if write else 0)

"""What other threads tell the engine thread: commands in order, and which requests are unwanted."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable

from ..errors import EngineStopped, Overloaded


class Inbox:
    """Commands run in the engine thread, one after the other, until `close`; `fileno` is readable
    while some wait. Any thread unless said otherwise."""

    def __init__(self, max_live: int) -> None:
        self.closed = False
        self._max_live = max_live
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._live: set[int] = set()  # submitted and not finished; guarded by _lock
        self._aborted: set[int] = set()  # guarded by _lock for changes
        self._next_id = 0

    @property
    def num_live(self) -> int:
        return len(self._live)

    def admit(self, command_of: Callable[[int], Callable[[], None]]) -> int:
        """A new request's id, after sending its command. Raises Overloaded, EngineStopped."""
        with self._lock:
            self._check_open()
            if len(self._live) >= self._max_live:
                raise Overloaded(
                    f"{len(self._live)} requests are running or waiting; this worker takes "
                    f"{self._max_live}: retry later"
                )
            self._next_id += 1
            self._live.add(self._next_id)
            self._send(command_of(self._next_id))
            return self._next_id

    def abort(self, request_id: int, command: Callable[[], None]) -> None:
        """Marks a live request as unwanted and sends the command; unknown ids are ignored."""
        with self._lock:
            if request_id in self._live:
                self._aborted.add(request_id)
                self._send(command)

    def send(self, command: Callable[[], None]) -> None:
        """Raises EngineStopped."""
        with self._lock:
            self._check_open()
            self._send(command)

    def close(self) -> None:
        """Nothing is taken any more; what was sent still runs."""
        with self._lock:
            self.closed = True
            self._wake_up()

    def release(self) -> None:
        """After `close`, when nobody runs commands any more: gives `fileno` back. Idempotent."""
        with self._lock:
            if self._wake >= 0:
                os.close(self._wake)
            self._wake = -1

    def is_aborted(self, request_id: int) -> bool:
        return request_id in self._aborted

    def ended(self, request_id: int) -> None:
        """The engine thread is done with it."""
        with self._lock:
            self._live.discard(request_id)
            self._aborted.discard(request_id)

    def fileno(self) -> int:
        return self._wake

    def run_commands(self) -> None:
        """Engine thread."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        while not self._commands.empty():
            self._commands.get_nowait()()

    def _check_open(self) -> None:
        if self.closed:
            raise EngineStopped("the engine is not running")

    def _send(self, command: Callable[[], None]) -> None:
        self._commands.put(command)
        self._wake_up()

    def _wake_up(self) -> None:
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)

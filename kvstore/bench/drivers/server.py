"""The server that a contestant's calls go to."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence

from .contract import Failed

READY_SECONDS = 20.0
POLL_SECONDS = 0.05
STOP_SECONDS = 5.0


class Server:
    """A process of its own; in the driver's process group, so that it ends with it."""

    def __init__(self, command: Sequence[str], is_ready: Callable[[], bool]) -> None:
        """Returns once it is ready. Raises Failed."""
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2)
        deadline = time.monotonic() + READY_SECONDS
        while not is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise Failed(f"{command[0]} did not start")
            time.sleep(POLL_SECONDS)

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

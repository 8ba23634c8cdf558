"""Whether the machine's cores are busy at this moment."""

from __future__ import annotations

import os
import re
from io import FileIO

_RUNNING = re.compile(rb"\S+ \S+ \S+ (\d+)/")
"""In /proc/loadavg: how many threads run or want to, this one among them."""


class Cores:
    """The machine's. Keeps a file open from the first question on: to open it takes longer than to
    read it."""

    def __init__(self) -> None:
        self._num_cores = os.cpu_count() or 1
        self._usable = len(os.sched_getaffinity(0))
        self._file: FileIO | None = None

    def are_free(self) -> bool:
        """True when one that this process may use has nothing to do."""
        return self._usable > 1 and self._num_running() < self._num_cores

    def are_enough(self) -> bool:
        """True when no thread waits for one."""
        return self._num_running() <= self._num_cores

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _num_running(self) -> int:
        """Threads that run or wait for a core; where that is not told, or no descriptor is left to
        ask with, more than there are."""
        try:
            if self._file is None:
                self._file = FileIO("/proc/loadavg")
            found = _RUNNING.match(os.pread(self._file.fileno(), 64, 0))
        except OSError:
            found = None
        return int(found[1]) if found else self._num_cores + 1

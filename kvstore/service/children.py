"""Processes that a command of ours starts."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> Callable[[], None]:
    """What a child runs between fork and exec: it gets SIGTERM when the thread that started it
    ends, however that comes."""
    parent = os.getpid()
    prctl = ctypes.CDLL(None).prctl  # loaded before the fork

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # it died before we asked
            os._exit(1)

    return prepare

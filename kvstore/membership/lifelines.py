"""Proof of life that ends with its process: a lock on a file, dropped by the kernel.

A lease alone says "dead" only when it has run out. A registered process also holds its lifeline, so
that a successor under the same name need not wait out the lease of one that was killed. Unlike a
process id this cannot be mistaken across containers or after a wrap-around.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class Lifelines:
    """The lifelines this process holds, one a path."""

    def __init__(self) -> None:
        self._held: dict[Path, int] = {}

    def hold(self, path: Path) -> None:
        """Does nothing when held already; call it where no other process can register."""
        if path in self._held:
            return
        descriptor = _open(path)
        if try_lock(descriptor):
            self._held[path] = descriptor
        else:  # its lease ran out while it is stopped: it finds out when it renews
            os.close(descriptor)

    def release(self, path: Path) -> None:
        descriptor = self._held.pop(path, None)
        if descriptor is not None:
            path.unlink(missing_ok=True)
            os.close(descriptor)

    def is_cut(self, path: Path) -> bool:
        """True when the process that held it is gone. False while it lives, or when none was."""
        if path in self._held or not path.exists():
            return False
        descriptor = _open(path)
        try:
            return try_lock(descriptor)
        finally:
            os.close(descriptor)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def try_lock(descriptor: int) -> bool:
    """An exclusive flock, without waiting."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

"""The daemon's own directory: one daemon at a time, and a file that says how to reach it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

import msgspec

from ..errors import Conflict, StoreUnavailable

_LOCK = "lock"
_STATE = "store.json"
_PID_CHARACTERS = 31
"""Written over in place: on a full disk a shorter file would lose its block."""


class StoreState(msgspec.Struct, frozen=True):
    """`store.json`: how to reach the daemon that runs on this directory now."""

    socket: str
    listen: str | None
    admin: str
    pid: int
    instance: str
    transfer: str | None = None  # where peers read the pool


class DataDir:
    """Exclusive use of a data directory, from construction to `close` or the process's end.

    The lock is a flock, which also holds between containers that share the directory and ends with
    its process, however that ends. Raises Conflict, before anything in the directory changes, when
    another daemon has it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(self._lock, 32, 0).decode("ascii", "replace").strip()
            os.close(self._lock)
            raise Conflict(
                f"data dir {path} is in use by the store daemon with pid {holder or 'unknown'}; "
                "stop it or give another --data-dir"
            ) from error
        with contextlib.suppress(OSError):  # a full disk: the lock holds without its holder's name
            os.pwrite(self._lock, f"{os.getpid():<{_PID_CHARACTERS}}\n".encode(), 0)

    def publish(self, state: StoreState) -> None:
        """Writes `store.json` in one step. Raises StoreUnavailable when the disk does not take
        it."""
        draft = self.path / f".{_STATE}.{os.getpid()}"
        try:
            draft.write_bytes(msgspec.json.format(msgspec.json.encode(state), indent=2) + b"\n")
            draft.rename(self.path / _STATE)
        except OSError as error:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            raise StoreUnavailable(
                f"cannot write {self.path / _STATE}: {error.strerror}; free space there or give "
                "another --data-dir"
            ) from error

    def close(self) -> None:
        (self.path / _STATE).unlink(missing_ok=True)
        os.close(self._lock)


def read_state(path: Path) -> StoreState | None:
    """What the daemon on data dir `path` published; None when none did."""
    try:
        return msgspec.json.decode((path / _STATE).read_bytes(), type=StoreState)
    except FileNotFoundError:
        return None

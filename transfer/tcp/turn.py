"""Who receives on a connection that several threads could receive on."""

from __future__ import annotations

import threading
from types import TracebackType

from ..errors import TransferError, Unavailable


class Turn:
    """One thread at a time: `if turn.take(): with turn: …`, or `turn.wait()` before. What is raised
    meanwhile leaves the connection in no known state: `check` tells whoever comes next."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._error: TransferError | OSError | None = None

    def take(self) -> bool:
        """False: another thread has it."""
        return self._lock.acquire(blocking=False)

    def is_taken(self) -> bool:
        return self._lock.locked()

    def wait(self) -> None:
        self._lock.acquire()

    def check(self) -> None:
        """Raises what ended the connection: TransferError, OSError."""
        if self._error is not None:
            raise self._error

    def __enter__(self) -> None:
        """It was taken."""

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        if isinstance(error, TransferError | OSError):
            self._error = error
        elif error is not None:
            self._error = Unavailable(f"who received was interrupted: {error!r}")
        self._lock.release()

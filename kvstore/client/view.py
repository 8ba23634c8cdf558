"""An entry in place: pinned in the pool, read without a copy."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from types import TracebackType

from .. import wire
from ..errors import StoreError, ViewExpired
from ..types import Located
from .connections.attachment import Attachment
from .connections.link import Link
from .deadline import Deadline


class View:
    """`data` is a read-only memoryview of the entry's bytes, verified when the view was made.

    The pin holds until `release` (or the end of the `with`). It is lost when its connection breaks
    and the entry is then evicted, or the daemon is replaced: `valid()` tells, and leaving the
    `with` raises ViewExpired, since what was read may have changed underneath. The memory itself
    stays readable as long as `data` is referenced. Without shared memory `data` is a private copy,
    which cannot be lost."""

    def __init__(
        self, data: memoryview, *, place: tuple[Attachment, Located] | None, pin: Pin | None
    ) -> None:
        self.data = data
        self._place = place
        self._pin = pin

    def valid(self) -> bool:
        """True while `data` is surely the entry that was looked up."""
        if self._place is None:
            return True
        attachment, located = self._place
        return not attachment.retired and attachment.is_current(located)

    def release(self) -> None:
        """Ends the pin; `data` must not be read any more. Idempotent."""
        pin, self._pin = self._pin, None
        if pin is not None:
            pin.release()

    def __enter__(self) -> View:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        lost = not self.valid()
        self.release()
        if lost and error is None:
            raise ViewExpired(
                f"the pin of this view of {len(self.data)} bytes was lost while it was read; "
                "throw away what was derived from it and read again"
            )

    def __del__(self) -> None:
        if self._pin is not None:
            self._pin.drop()


@dataclass(frozen=True, slots=True)
class Pin:
    """Ends with its release, or with the connection that took it."""

    pins: Pins
    connection: int
    ticket: bytes

    def release(self) -> None:
        self.pins.release(self)

    def drop(self) -> None:
        """Release later: for finalizers, which may run anywhere and must not block."""
        self.pins.dropped.append(self)


class Pins:
    """Releases the pins of one client. Thread-safe."""

    def __init__(self, link: Link, timeout_s: float) -> None:
        self._link = link
        self._timeout_s = timeout_s
        self.dropped: deque[Pin] = deque()

    def release(self, pin: Pin) -> None:
        """Never raises a StoreError: when the daemon cannot be told, the connection has ended and
        the pin with it."""
        try:
            self._link.act_on(pin.connection, wire.Unpin(pin.ticket), Deadline(self._timeout_s))
        except StoreError:
            return

    def release_dropped(self) -> None:
        while self.dropped:
            self.release(self.dropped.popleft())

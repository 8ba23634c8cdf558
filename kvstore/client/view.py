"""An entry in place: pinned in the pool, read without a copy."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress

from moontide.transfer import checksum

from .. import wire
from ..errors import StoreError, ViewExpired
from ..types import Located
from .connections.attachment import Attachment
from .connections.link import Link
from .deadline import Deadline


class View:
    """`data` is a read-only memoryview of the entry's bytes as they lie in the store. They are not
    looked at before: `verify` sums them.

    The pin holds until `release` (or the end of the `with`). It is lost when its connection breaks
    and the entry is then evicted, when its ticket ends, or when the daemon is replaced: `valid()`
    tells, and leaving the `with` raises ViewExpired, since what was read may have changed
    underneath. The memory itself stays readable as long as `data` is referenced. Without shared
    memory `data` is a private copy, verified, which cannot be lost."""

    _pin: Pin | None = None  # also of one that an interrupt keeps from being made

    def __init__(
        self,
        data: memoryview,
        *,
        place: tuple[Attachment, Located] | None,
        pin: Pin | None,
        on_corrupt: Callable[[Attachment, Located], None],
    ) -> None:
        """`pin` None: it is somebody else's, or needs none."""
        self.data = data
        self._place = place
        self._pin = pin
        self._on_corrupt = on_corrupt

    @classmethod
    def of_copy(cls, value: bytes) -> View:
        return cls(memoryview(value), place=None, pin=None, on_corrupt=_no_place)

    def valid(self) -> bool:
        """True while `data` is surely the entry that was looked up."""
        if self._place is None:
            return True
        attachment, located = self._place
        return not attachment.retired and attachment.is_intact(located)

    def verify(self) -> bool:
        """True when `data` is the entry, and sums up to what its producer said (if it did). A
        damaged entry is counted, and the daemon told of it."""
        if self._place is None:
            return True
        attachment, located = self._place
        is_right = not located.checksum or checksum(self.data) == located.checksum
        if not self.valid():
            return False
        if not is_right:
            self._on_corrupt(attachment, located)
        return is_right

    def release(self) -> None:
        """Ends the pin; `data` must not be read any more. Idempotent."""
        pin, self._pin = self._pin, None
        if pin is not None:
            pin.release()

    def __enter__(self) -> View:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
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


def _no_place(attachment: Attachment, located: Located) -> None:
    raise AssertionError("a private copy was found damaged")


class Pin:
    """Of a view: ends with its release, or with the connection that took it. Of a ticket
    (`connection` 0): with its release, or its TTL."""

    __slots__ = ("attachment", "connection", "pins", "ticket")

    def __init__(self, pins: Pins, attachment: Attachment, connection: int, ticket: bytes) -> None:
        self.pins = pins
        self.attachment = attachment
        self.connection = connection
        self.ticket = ticket

    def release(self) -> None:
        self.pins.release(self)

    def drop(self) -> None:
        """Release, from a finalizer, which may run anywhere and must not block."""
        self.pins.drop(self)


class Pins:
    """Releases the pins of one client. Thread-safe."""

    def __init__(self, link: Link, timeout_s: float) -> None:
        self._link = link
        self._timeout_s = timeout_s
        self.dropped: deque[Pin] = deque()

    def release(self, pin: Pin) -> None:
        """Without waiting, unless the daemon speaks version 1. Never raises a StoreError: when the
        daemon cannot be told, the connection has ended and the pin with it."""
        if pin.attachment.takes_notes:
            self._tell(pin)
            return
        message, deadline = wire.Unpin(pin.ticket), Deadline(self._timeout_s)
        with suppress(StoreError):
            if pin.connection:
                self._link.act_on(pin.connection, message, deadline)
            else:
                self._link.ask(message, deadline)

    def drop(self, pin: Pin) -> None:
        if pin.attachment.takes_notes:
            self._tell(pin)
        else:
            self.dropped.append(pin)

    def release_dropped(self) -> None:
        while self.dropped:
            self.release(self.dropped.popleft())

    def _tell(self, pin: Pin) -> None:
        pin.attachment.notes.release(pin.connection, pin.ticket)
        if not pin.attachment.retired:
            self._link.send_notes()

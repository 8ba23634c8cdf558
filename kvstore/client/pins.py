"""Pins that views hold."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from .. import wire
from ..errors import StoreError
from .connections.link import Link
from .deadline import Deadline


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

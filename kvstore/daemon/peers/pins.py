"""What a peer holds for us while we read it."""

from __future__ import annotations

import time

from ... import wire
from .link import PeerLink

PIN_SECONDS = 8.0
"""A store that is killed releases nothing: what it held at its peers is free within 10 s."""
RENEW_SECONDS = 2.0


class PeerPins:
    """Tickets at one peer, until `release`, or PIN_SECONDS after the last renewal that reached
    it."""

    def __init__(self, link: PeerLink) -> None:
        self._link = link
        self._tickets: list[bytes] = []
        self._renewed = time.monotonic()

    def add(self, ticket: bytes) -> None:
        """Empty: nothing is pinned."""
        if ticket:
            self._tickets.append(ticket)

    def renew(self) -> None:
        """To be called a few times within PIN_SECONDS."""
        now = time.monotonic()
        if now - self._renewed > RENEW_SECONDS:
            self._renewed = now
            for ticket in self._tickets:
                self._link.tell(wire.RenewTicket(ticket, PIN_SECONDS))

    def release(self) -> None:
        """The peer need not hold anything for us any more."""
        for ticket in self._tickets:
            self._link.tell(wire.Unpin(ticket))
        self._tickets.clear()

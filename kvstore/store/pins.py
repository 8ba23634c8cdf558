"""Pins: views, which end with their connection, and tickets, which end with their TTL.

A view's pin belongs to one owner. A ticket may be used, renewed and ended by whoever knows it.
"""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Iterable, Sequence

from moontide.transfer.types import Instance

from ..errors import InvalidRequest, OutOfSpace
from .entries import Entries
from .expiry import Expiry
from .owners import Owner
from .requests import check_ttl

MAX_TTL_SECONDS = 3600.0
MAX_TICKETS = 65536
TICKET_BYTES = 16


class _Pin:
    __slots__ = ("client", "num_bytes", "owner", "slots")

    def __init__(
        self, client: Instance, owner: Owner | None, slots: array[int], num_bytes: int
    ) -> None:
        self.client = client
        self.owner = owner  # of a view; None: a ticket
        self.slots = slots
        self.num_bytes = num_bytes


class Pins:
    """`max_client_bytes` bounds what one client process may hold pinned, counted once a pin."""

    def __init__(self, entries: Entries, max_client_bytes: int) -> None:
        self._entries = entries
        self._max_client_bytes = max_client_bytes
        self._pins: dict[bytes, _Pin] = {}
        self._expiry: Expiry[bytes] = Expiry()
        self._client_bytes: dict[Instance, int] = {}

    def __len__(self) -> int:
        return len(self._pins)

    def slots(self) -> Iterable[int]:
        """Every pinned slot, once a holder."""
        for pin in self._pins.values():
            yield from pin.slots

    def take(self, owner: Owner, slots: Sequence[int], pin_s: float, now: float) -> bytes:
        """Pins the slots, in order of a chain if they are one: a view with `pin_s` 0, else a
        ticket."""
        if pin_s != 0:
            check_ttl("pin_s", pin_s, MAX_TTL_SECONDS)
        num_bytes = sum(map(self._entries.occupied, slots))
        held = self._client_bytes.get(owner.client, 0)
        if held + num_bytes > self._max_client_bytes:
            raise OutOfSpace(
                f"pinning {num_bytes} bytes; this client holds {held} and may hold "
                f"{self._max_client_bytes}: release pins first"
            )
        if len(self._pins) >= MAX_TICKETS:
            raise OutOfSpace(f"{MAX_TICKETS} pins are held; release some first")
        ticket = secrets.token_bytes(TICKET_BYTES)
        view_owner = None if pin_s else owner
        self._pins[ticket] = _Pin(owner.client, view_owner, array("I", slots), num_bytes)
        self._client_bytes[owner.client] = held + num_bytes
        if view_owner is None:
            self._expiry.set(ticket, now + pin_s)
        else:
            owner.views.add(ticket)
        for slot in slots:
            self._entries.pin(slot)
        return ticket

    def release(self, owner: Owner, ticket: bytes) -> None:
        pin = self._pins.get(ticket)
        if pin is None or pin.owner not in (None, owner):
            self._entries.counters.double_releases += 1
            raise InvalidRequest(
                f"ticket {ticket[:TICKET_BYTES].hex()} is not held by this connection: it was "
                "released, has expired, or is another's view"
            )
        self._end(ticket)

    def renew(self, ticket: bytes, ttl_s: float, now: float) -> None:
        check_ttl("ttl_s", ttl_s, MAX_TTL_SECONDS)
        pin = self._pins.get(ticket)
        if pin is None or pin.owner is not None:
            raise InvalidRequest(
                f"ticket {ticket[:TICKET_BYTES].hex()} cannot be renewed: it was released, has "
                "expired, or is a view"
            )
        self._expiry.set(ticket, now + ttl_s)

    def end_owner(self, owner: Owner) -> None:
        for ticket in tuple(owner.views):
            self._end(ticket)

    def expire(self, now: float) -> None:
        for ticket in self._expiry.pop_due(now, MAX_TICKETS):
            self._end(ticket)

    def _end(self, ticket: bytes) -> None:
        pin = self._pins.pop(ticket)
        if pin.owner is None:
            self._expiry.discard(ticket)
        else:
            pin.owner.views.discard(ticket)
        left = self._client_bytes[pin.client] - pin.num_bytes
        if left:
            self._client_bytes[pin.client] = left
        else:
            del self._client_bytes[pin.client]
        for slot in reversed(pin.slots):  # the end of a chain becomes the coldest
            self._entries.unpin(slot)

"""Pins: views, which end with their connection, and tickets, which end with their TTL.

A view's pin belongs to one owner. A ticket may be used, renewed and ended by whoever knows it. What
is being sent from pool memory is pinned too, by a view that is counted apart: a reply must be
possible however much its client holds pinned.
"""

from __future__ import annotations

import secrets
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence

from moontide.transfer.types import Instance

from ..errors import InvalidRequest, OutOfSpace
from .checks import check_ttl
from .entries import Entries
from .expiry import Expiry
from .owners import Owner
from .shares import Shares

MAX_TTL_SECONDS = 3600.0
MAX_TICKETS = 65536
MAX_CLIENT_TICKETS = 8192
TICKET_BYTES = 16
DRAWN_TICKETS = 64


class _Pin:
    __slots__ = ("client", "num_bytes", "owner", "shares", "slots")

    def __init__(
        self,
        client: Instance,
        owner: Owner | None,
        slots: array[int],
        num_bytes: int,
        shares: Shares,
    ) -> None:
        self.client = client
        self.owner = owner  # of a view; None: a ticket
        self.slots = slots
        self.num_bytes = num_bytes
        self.shares = shares  # that it is counted in


class Pins:
    """One client process may hold `max_pin_ratio` of the pool pinned, counted once a pin, and as
    much may be on its way to it. All together hold at most `max_total_pin_ratio`, each entry
    counted once: tickets outlive a client that crashes again and again."""

    def __init__(self, entries: Entries) -> None:
        settings = entries.pool.settings
        self._entries = entries
        self._shares = Shares.of(settings, settings.max_pin_ratio)
        self._sending = Shares.of(settings, settings.max_pin_ratio)
        ratio = max(settings.max_pin_ratio, settings.max_total_pin_ratio)
        self._max_bytes = int(ratio * settings.capacity_bytes)
        self._pins: dict[bytes, _Pin] = {}
        self._expiry: Expiry[bytes] = Expiry()
        self._client_tickets: Counter[Instance] = Counter()
        self._randomness: list[bytes] = []  # of tickets to come

    def __len__(self) -> int:
        return len(self._pins)

    def slots(self) -> Iterable[int]:
        """Every pinned slot, once a holder."""
        for pin in self._pins.values():
            yield from pin.slots

    def others(self, ticket: bytes, slots: Sequence[int]) -> Sequence[int]:
        """Those of the slots that this ticket does not pin."""
        pin = self._pins.get(ticket)
        if pin is None:
            return slots
        held = set(pin.slots)
        return [slot for slot in slots if slot not in held]

    def take(self, owner: Owner, slots: Sequence[int], pin_s: float, now: float) -> bytes:
        """Pins the slots, in order of a chain if they are one: a view with `pin_s` 0, else a
        ticket."""
        if pin_s != 0:
            check_ttl("pin_s", pin_s, MAX_TTL_SECONDS)
        num_bytes = self._admit(owner.client, slots)
        ticket = self._add(
            _Pin(owner.client, None if pin_s else owner, array("I", slots), num_bytes, self._shares)
        )
        self._client_tickets[owner.client] += 1
        if pin_s:
            self._expiry.set(ticket, now + pin_s)
        return ticket

    def room(self, owner: Owner, slots: Sequence[int]) -> int:
        """How many of these slots, from the first on, the owner's client may pin now."""
        held, count = self._shares.held(owner.client)
        left = self._shares.max_bytes - held
        fresh = self._max_bytes - self._entries.counters.pinned_bytes
        for number, slot in enumerate(slots):
            num_bytes = self._entries.occupied(slot)
            left -= num_bytes
            fresh -= 0 if self._entries.catalog.pins[slot] else num_bytes
            if left < 0 or fresh < 0 or count + number >= self._shares.max_entries:
                return number
        return len(slots)

    def take_to_send(self, owner: Owner, slots: Sequence[int]) -> bytes:
        """A view that ends once the bytes have left."""
        num_bytes = sum(map(self._entries.occupied, slots))
        if not self._sending.admits(owner.client, num_bytes, len(slots)):
            raise OutOfSpace(
                f"{num_bytes} bytes of {len(slots)} entries to send; of the pool's at most "
                f"{self._sending.max_bytes} may be on their way to one client: ask for fewer"
            )
        return self._add(_Pin(owner.client, owner, array("I", slots), num_bytes, self._sending))

    def _admit(self, client: Instance, slots: Sequence[int]) -> int:
        """Bytes of the slots. Raises OutOfSpace when the client or all together pin enough."""
        occupied, pins = self._entries.occupied, self._entries.catalog.pins
        num_bytes = sum(map(occupied, slots))
        held, count = self._shares.held(client)
        if (
            held + num_bytes > self._shares.max_bytes
            or count + len(slots) > self._shares.max_entries
        ):
            raise OutOfSpace(
                f"pinning {num_bytes} bytes; this client holds {held} and may hold "
                f"{self._shares.max_bytes} (and {self._shares.max_entries} entries, of which it "
                f"holds {count}): release pins first"
            )
        fresh = sum(occupied(slot) for slot in set(slots) if not pins[slot])
        if self._entries.counters.pinned_bytes + fresh > self._max_bytes:
            raise OutOfSpace(
                f"pinning {fresh} bytes more; {self._entries.counters.pinned_bytes} are pinned and "
                f"at most {self._max_bytes} may be: retry later"
            )
        tickets = self._client_tickets[client]
        if len(self._pins) >= MAX_TICKETS or tickets >= MAX_CLIENT_TICKETS:
            raise OutOfSpace(
                f"{len(self._pins)} pins are held (of {MAX_TICKETS}), {tickets} by this client (of "
                f"{MAX_CLIENT_TICKETS}): release some first"
            )
        return num_bytes

    def _add(self, pin: _Pin) -> bytes:
        ticket = self._new_ticket()
        self._pins[ticket] = pin
        pin.shares.take(pin.client, pin.num_bytes, len(pin.slots))
        if pin.owner is not None:
            pin.owner.views.add(ticket)
        for slot in pin.slots:
            self._entries.pin(slot)
        return ticket

    def _new_ticket(self) -> bytes:
        """Nobody can guess it. Randomness is asked for many at a time: each asking is a system
        call."""
        if not self._randomness:
            drawn = secrets.token_bytes(TICKET_BYTES * DRAWN_TICKETS)
            self._randomness = [
                drawn[start : start + TICKET_BYTES] for start in range(0, len(drawn), TICKET_BYTES)
            ]
        return self._randomness.pop()

    def release(self, owner: Owner, ticket: bytes) -> None:
        if not self.let_go(owner, ticket):
            raise InvalidRequest(
                f"ticket {ticket[:TICKET_BYTES].hex()} is not held by this connection: it was "
                "released, has expired, or is another's view"
            )

    def let_go(self, owner: Owner, ticket: bytes) -> bool:
        """False (counted): the owner holds no such pin."""
        pin = self._pins.get(ticket)
        if pin is None or pin.owner not in (None, owner):
            self._entries.counters.double_releases += 1
            return False
        self._end(ticket)
        return True

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
        pin.shares.give_back(pin.client, pin.num_bytes, len(pin.slots))
        if pin.shares is self._shares:
            self._client_tickets[pin.client] -= 1
            if not self._client_tickets[pin.client]:
                del self._client_tickets[pin.client]
        for slot in reversed(pin.slots):  # the end of a chain becomes the coldest
            self._entries.unpin(slot)

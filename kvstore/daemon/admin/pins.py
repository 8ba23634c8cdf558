"""An operator's pins: entries that stay in DRAM until they are unpinned or their time is over."""

from __future__ import annotations

import time
from typing import NamedTuple

from ...errors import Busy, InvalidRequest
from ...service import AnyRoute, Call, Plain, Route
from ...store import FILL_OWNER
from .bodies import PinAnswer, PinInfo, PinRequest, PinsAnswer, UnpinAnswer, UnpinRequest
from .keys import TextKey, parse_key
from .listing import Listing

MAX_PINS = 1024
"""Held at once, of up to MAX_PINNED_KEYS keys each."""


class _Pin(NamedTuple):
    keys: tuple[str, ...]
    entries: int
    num_bytes: int
    until: float


class PinRoutes:
    """Pins are the store's own tickets: its share of the pool bounds what they hold together."""

    def __init__(self, listing: Listing) -> None:
        self._listing = listing
        self._pins: dict[bytes, _Pin] = {}

    def pinned(self) -> set[TextKey]:
        """All keys that operators keep here now."""
        self._forget_expired()
        return {parse_key(text) for pin in self._pins.values() for text in pin.keys}

    def routes(self) -> list[AnyRoute]:
        return [
            Route(
                method="POST",
                path="/v1/pin",
                handler=self._pin,
                summary="Keep entries in DRAM for a while",
                request=PinRequest,
                response=PinAnswer,
            ),
            Route(
                method="GET",
                path="/v1/pins",
                handler=self._list,
                summary="What operators keep pinned",
                response=PinsAnswer,
            ),
            Route(
                method="POST",
                path="/v1/unpin",
                handler=self._unpin,
                summary="End one pin of an operator, or all",
                request=UnpinRequest,
                response=UnpinAnswer,
            ),
        ]

    async def _pin(self, call: Call[PinRequest, None]) -> PinAnswer:
        self._forget_expired()
        if len(self._pins) >= MAX_PINS:
            raise Busy(f"{MAX_PINS} pins of operators are held, the limit: end some with /v1/unpin")
        keys = {text: parse_key(text) for text in call.body.keys}
        found = await self._listing.ids_in_dram(set(keys.values()))
        entries = [entry for ids in found.values() for entry in ids]
        missing = [text for text, key in keys.items() if key not in found]
        now, ttl_s = time.monotonic(), call.body.ttl_s
        located, ticket = self._listing.store.lookup(FILL_OWNER, entries, ttl_s, now)
        held = [each for each in located if each is not None]
        if ticket:
            num_bytes = sum(each.length for each in held)
            self._pins[ticket] = _Pin(call.body.keys, len(held), num_bytes, now + ttl_s)
        return PinAnswer(
            pin=ticket.hex(),
            entries=len(held),
            num_bytes=sum(each.length for each in held),
            missing=missing,
        )

    async def _list(self, call: Plain) -> PinsAnswer:
        self._forget_expired()
        now = time.monotonic()
        return PinsAnswer(
            [
                PinInfo(ticket.hex(), list(pin.keys), pin.entries, pin.num_bytes, pin.until - now)
                for ticket, pin in self._pins.items()
            ]
        )

    async def _unpin(self, call: Call[UnpinRequest, None]) -> UnpinAnswer:
        self._forget_expired()
        wanted = call.body.pin
        tickets = [ticket for ticket in self._pins if wanted in (None, ticket.hex())]
        if wanted is not None and not tickets:
            raise InvalidRequest(f"no pin {wanted[:80]!r} is held: GET /v1/pins lists them")
        for ticket in tickets:
            del self._pins[ticket]
            self._listing.store.unpin(FILL_OWNER, ticket)
        return UnpinAnswer(len(tickets))

    def _forget_expired(self) -> None:
        """The store has ended them, or does with its next tick."""
        now = time.monotonic()
        self._listing.store.expire(now)
        self._pins = {ticket: pin for ticket, pin in self._pins.items() if pin.until > now}

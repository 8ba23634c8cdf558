"""What is held at a peer: renewed while it is read, and free soon after its reader is killed."""

from __future__ import annotations

import time

import pytest

from moontide.kvstore import wire
from moontide.kvstore.daemon.peers.pins import PIN_SECONDS, RENEW_SECONDS, PeerPins


class Link:
    def __init__(self) -> None:
        self.told: list[wire.Request] = []

    def tell(self, message: wire.Request) -> None:
        self.told.append(message)


def test_pins_are_renewed_when_it_is_time_and_released_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    link = Link()
    held = PeerPins(link)  # type: ignore[arg-type]  # what it uses of one
    for ticket in (b"one", b"", b"two"):
        held.add(ticket)
    held.renew()
    assert link.told == []
    now += RENEW_SECONDS + 0.1
    for _ in range(2):
        held.renew()
    tickets = [b"one", b"two"]
    assert link.told == [wire.RenewTicket(ticket, PIN_SECONDS) for ticket in tickets]
    link.told.clear()
    for _ in range(2):
        held.release()
    assert link.told == [wire.Unpin(ticket) for ticket in tickets]


def test_what_a_killed_store_held_at_its_peers_is_free_within_10_seconds() -> None:
    """Tickets outlive connections: they end with their time, unless renewed."""
    assert 3 * RENEW_SECONDS < PIN_SECONDS < 9

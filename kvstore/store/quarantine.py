"""Space that a vanished writer may still write: not used again before it has surely stopped."""

from __future__ import annotations

from moontide.transfer.types import Instance

from ..slots import SlotState
from .catalog import QUARANTINED
from .entries import Entries
from .shares import Shares


class Quarantine:
    """Slots of reservations by client. They count as reserved by it until they end."""

    def __init__(self, entries: Entries, shares: Shares) -> None:
        self._entries = entries
        self._shares = shares
        self._slots: dict[Instance, list[int]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._slots.values()))

    def take_in(self, slot: int, client: Instance) -> None:
        """A reservation that was closed and not freed."""
        entries, occupied = self._entries, self._entries.occupied(slot)
        entries.set_state(slot, SlotState.QUARANTINED)
        entries.catalog.flags[slot] |= QUARANTINED
        entries.counters.quarantined_bytes += occupied
        self._shares.take(client, occupied)
        self._slots.setdefault(client, []).append(slot)

    def release(self, client: Instance) -> None:
        """None of the client's writes runs any more."""
        for slot in self._slots.pop(client, ()):
            occupied = self._entries.occupied(slot)
            self._entries.counters.quarantined_bytes -= occupied
            self._shares.give_back(client, occupied)
            self._entries.catalog.flags[slot] &= ~QUARANTINED
            self._entries.end(slot)

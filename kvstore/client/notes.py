"""What a client tells its daemon without asking: what it read by itself, which pins it gives up.

A use is a hint: where it cannot be sent soon it is thrown away. A release is kept until it is sent.
Nobody ever waits for either.
"""

from __future__ import annotations

from array import array
from collections import deque

from .. import wire

Place = tuple[int, int, int, int, int, int]
"""Where a committed entry lies: index of its slot's first word in the slot table, what that word
holds, segment, first byte, size, xxh3-64 (0: none was made)."""

MAX_USES = 1024
"""Kept until they are sent."""
MAX_NOTE_TICKETS = 4096
"""Of one message."""


class Notes:
    """For one life of a daemon. Thread-safe. Readers append to `uses` themselves; `released` are
    the tickets still to be told, each with the connection that its pin ends with, or 0."""

    def __init__(self) -> None:
        self.uses: list[Place] = []
        self.released: deque[tuple[int, bytes]] = deque()

    def __bool__(self) -> bool:
        return bool(self.uses or self.released)

    def release(self, connection: int, ticket: bytes) -> None:
        """`connection` is the one that the pin ends with, or 0. Finalizers may call this."""
        self.released.append((connection, ticket))

    def drop_excess(self) -> None:
        """They cannot be sent for now."""
        if len(self.uses) >= MAX_USES:
            self.uses = []

    def take(self, connection: int) -> wire.NoteUse:
        """What there is to tell over `connection`. Pins of ended connections have ended."""
        uses, self.uses = self.uses, []
        tickets: list[bytes] = []
        while self.released and len(tickets) < MAX_NOTE_TICKETS:
            owner, ticket = self.released.popleft()
            if owner in (0, connection):
                tickets.append(ticket)
        if not uses:
            return wire.NoteUse(b"", b"", 0, tickets)
        return wire.NoteUse(
            slots=array("I", [place[0] >> 3 for place in uses]).tobytes(),
            generations=array("I", [place[1] >> 32 for place in uses]).tobytes(),
            read_bytes=sum([place[4] for place in uses]),
            tickets=tickets,
        )

"""Blocks of one chain as one peer has them: looked up, pinned there, awaited layer by layer."""

from __future__ import annotations

from collections.abc import Sequence

from ... import wire
from ...errors import StoreTimeout
from ...keys import BlockKey, Namespace
from ...layout import Shard
from .link import PeerLink
from .offers import Offer, RemoteEntry, read_offer
from .pins import PIN_SECONDS, PeerPins
from .plan import Piece

ASK_SECONDS = 1.0
WAIT_SECONDS = 1.0
"""Longest single wait at the peer: in between, a fill looks whether it is still wanted."""


class RemoteBlocks:
    """What it finds is added to `pins`, which are the caller's to renew and to release. A peer that
    has not heard of the namespace's `floor` yet refuses to say what it has."""

    def __init__(
        self, link: PeerLink, namespace: Namespace, coverage: Sequence[Shard], *, floor: int
    ) -> None:
        self.link = link
        self._namespace = namespace
        self._floor = floor
        self._coverage = [shard.pack() for shard in coverage]
        self.pins = PeerPins(link)

    async def find(self, keys: Sequence[BlockKey], *, timeout_s: float) -> Offer:
        """Leading blocks that the peer has or brings from its disk now, pinned. Raises like
        `PeerLink.ask`, InvalidRequest for what no store would answer."""
        number = await self.link.namespace(self._namespace, timeout_s=timeout_s)
        message = self._lookup(number, keys, pin_s=PIN_SECONDS, timeout_s=timeout_s / 2)
        return self._take(await self.link.ask(message, wire.BlocksReply, timeout_s=timeout_s))

    async def find_pending(
        self, keys: Sequence[bytes], *, wait_s: float, pin_s: float | None
    ) -> Offer:
        """As `find`, also blocks that are still being written there; waits for the first."""
        number = await self.link.namespace(self._namespace, timeout_s=ASK_SECONDS)
        message = self._lookup(number, keys, pin_s=pin_s, wait_s=wait_s, pending=True)
        reply = await self.link.wait(message, wire.BlocksReply, wait_s=wait_s + ASK_SECONDS)
        return self._take(reply)

    async def refresh(self, pieces: Sequence[Piece]) -> None:
        """How far the peer is with these now."""
        keys = list(dict.fromkeys(piece.key for piece in pieces))
        match(pieces, keys, await self.find_pending(keys, wait_s=0.0, pin_s=None))

    async def await_extent(self, entry: RemoteEntry, extent: int) -> bool | None:
        """True when it is complete there, False when the entry ended before, None when neither
        came within WAIT_SECONDS."""
        message = wire.AwaitExtents([entry.slot], [entry.generation], extent, WAIT_SECONDS)
        try:
            reply = await self.link.wait(message, wire.ExtentsReply, wait_s=WAIT_SECONDS)
        except StoreTimeout:
            return None
        return reply.complete == b"\x01"

    def _lookup(
        self,
        number: int,
        keys: Sequence[bytes],
        *,
        pin_s: float | None,
        wait_s: float = 0.0,
        timeout_s: float | None = None,
        pending: bool = False,
    ) -> wire.LookupBlocks:
        return wire.LookupBlocks(
            namespace=number,
            keys=b"".join(keys),
            coverage=self._coverage,
            pin_s=pin_s,
            pending=pending,
            local_only=True,
            wait_s=wait_s,
            timeout_s=timeout_s,
            floor=self._floor,
        )

    def _take(self, reply: wire.BlocksReply) -> Offer:
        self.pins.add(reply.ticket)
        return read_offer(reply, self._namespace)


def match(pieces: Sequence[Piece], keys: Sequence[bytes], offer: Offer) -> None:
    """Gives each piece the entry of its shard, if the peer has it."""
    found = {
        (key, entry.shard): entry
        for key, entries in zip(keys, offer, strict=False)
        for entry in entries
    }
    for piece in pieces:
        piece.remote = found.get((piece.key, piece.shard), piece.remote)

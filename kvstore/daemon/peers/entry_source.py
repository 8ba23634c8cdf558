"""String entries that only peers have, brought here whole."""

from __future__ import annotations

import asyncio
import logging
import time
from array import array
from collections.abc import Sequence

from ... import wire
from ...errors import StoreError
from ...index import PrefixIndex
from ...keys import EntryId
from ...layout import Shard
from ...store import FILL_OWNER, Origin
from ...types import Located, ReserveStatus, Tier
from ..sources import EntriesWanted, Then
from .fences import Fences
from .filling import FillTools, PeerFill
from .link import PeerLink
from .news import PinnedSource
from .offers import RemoteEntry
from .plan import FillPlan, Piece
from .remote import PIN_SECONDS
from .reserving import TRANSPORT
from .roster import Neighbour, Roster
from .tasks import TaskGroup

logger = logging.getLogger(__name__)

MAX_HOLDERS = 3
"""Asked for one entry, one after another."""
ASK_SECONDS = 0.25
JOIN_SECONDS = 1.5
"""From our start until every peer has read our record (they poll), with room to spare."""
WHOLE = Shard(0, (0, 1), (0, 1))
"""A string entry has one extent."""


class PeerEntrySource:
    """Asks whoever holds an entry by the index; see `EntrySource`. What is brought is kept as a
    replica, which changes of the entry reach like any other (changes.py)."""

    def __init__(
        self,
        tools: FillTools,
        roster: Roster,
        index: PrefixIndex,
        tasks: TaskGroup,
        fences: Fences,
    ) -> None:
        self._tools = tools
        self._roster = roster
        self._index = index
        self._tasks = tasks
        self._fences = fences
        self._known_at = time.monotonic() + JOIN_SECONDS

    def holds(self, entries: Sequence[EntryId]) -> list[bool]:
        return [bool(self._holders(entry)) for entry in entries]

    def bring(self, request: EntriesWanted, then: Then) -> None:
        if not self._tasks.has_room or not any(self.holds(request.entries)):
            then()
        else:
            self._tasks.start(self._bring(request, then))

    async def _bring(self, request: EntriesWanted, then: Then) -> None:
        try:
            async with asyncio.timeout(request.deadline - time.monotonic()):
                missing = list(request.entries)
                for rank in range(MAX_HOLDERS):
                    await self._ask_all(missing, rank, request.deadline)
                    here = self._tools.store.exists(missing, time.monotonic())
                    missing = [e for e, is_here in zip(missing, here, strict=True) if not is_here]
        except TimeoutError:
            logger.info("peer_entries_late count=%d", len(request.entries))
        finally:
            then()

    async def _ask_all(self, entries: Sequence[EntryId], rank: int, deadline: float) -> None:
        """Each entry from its holder number `rank`, if it has so many."""
        by_holder: dict[str, tuple[Neighbour, list[EntryId]]] = {}
        for entry in entries:
            holders = self._holders(entry)
            if rank < len(holders):
                instance = holders[rank].record.instance
                by_holder.setdefault(instance, (holders[rank], []))[1].append(entry)
        for neighbour, wanted in by_holder.values():
            await self._ask(neighbour.link, wanted, deadline)

    async def _ask(self, link: PeerLink, entries: Sequence[EntryId], deadline: float) -> None:
        message = wire.Lookup(list(entries), PIN_SECONDS, local_only=True)
        try:
            reply = await link.ask(message, wire.LookupReply, timeout_s=ASK_SECONDS)
        except StoreError as error:
            logger.info("peer_entries_failed peer=%s reason=%s", link.record.id, error)
            return
        source = PinnedSource(link, reply.ticket)
        pieces = [
            piece
            for entry, found in zip(entries, reply.found, strict=False)
            if found is not None and (piece := self._place(entry, Located(*found))) is not None
        ]
        if pieces:
            await PeerFill(self._tools, link, FillPlan(pieces), source, deadline).run()
        else:
            source.close()

    def _holders(self, entry: EntryId) -> list[Neighbour]:
        """Peers to ask, DRAM first; none while the entry is being changed, or while a peer that
        changes it may not know of us yet."""
        now = time.monotonic()
        if now < self._known_at or self._fences.is_fenced(entry, now):
            return []
        found = sorted(self._index.holders(entry), key=lambda place: place[1])
        instances = dict.fromkeys(instance for instance, _ in found)
        neighbours = map(self._roster.find, instances)
        return [each for each in neighbours if each is not None and each.link.is_up]

    def _place(self, entry: EntryId, found: Located) -> Piece | None:
        """A reservation for what the peer has; None without room, while another brings it, or
        while it is being changed."""
        store, now = self._tools.store, time.monotonic()
        if self._fences.is_fenced(entry, now) or not 0 <= found.length <= store.max_entry_bytes:
            return None
        origin = Origin(Tier.DRAM, TRANSPORT)
        (got,) = store.reserve_entry_fill(
            FILL_OWNER, [entry], [found.length], origin=origin, now=now
        )
        if got.status is not ReserveStatus.RESERVED:
            return None
        if not found.length:  # nothing to read
            store.commit(FILL_OWNER, [got.slot], [got.generation], [found.checksum], now)
            return None
        return Piece(
            key=entry,
            shard=WHOLE,
            slot=got.slot,
            generation=got.generation,
            memory=store.reserved_buffer(FILL_OWNER, got.slot, got.generation),
            num_extents=1,
            stride=found.length,
            extent_bytes=found.length,
            remote=RemoteEntry(
                shard=WHOLE,
                slot=found.slot,
                generation=found.generation,
                segment=found.segment,
                offset=found.offset,
                extents=1,
                tier=Tier.DRAM,
                checksums=array("Q", [found.checksum]),
            ),
        )

"""String entries that only peers have, brought here whole."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Sequence
from functools import partial
from itertools import compress

from moontide.transfer.types import Priority

from ... import wire
from ...errors import StoreError
from ...index import PrefixIndex
from ...keys import EntryId
from ...store import FILL_OWNER, REMOTE_TRANSPORT, Origin
from ...types import ReserveStatus, Tier
from ..sources import EntriesWanted, Found, Then
from .fences import Fences
from .filling import FillTools, PeerFill
from .link import PeerLink
from .news import PinnedSource
from .offers import WHOLE, RemoteString, read_strings
from .pins import PIN_SECONDS, PeerPins
from .plan import FillPlan, Piece
from .roster import Neighbour, Roster
from .tasks import TaskGroup

logger = logging.getLogger(__name__)

MAX_HOLDERS = 3
"""Asked for one entry, one after another."""
ASK_SECONDS = 0.25
FILL_SECONDS = 10.0
STRINGS = b""
"""Of what has a floor (daemon/floors.py): the string entries."""
JOIN_SECONDS = 1.5
"""From our registration until every peer has read our record (they poll), with room to spare."""


class PeerEntrySource:
    """Asks whoever holds an entry by the index; see `PeerEntries`. What is brought is kept as a
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
        self._known_at = math.inf
        self._coming: dict[EntryId, asyncio.Task[None]] = {}

    def joined(self) -> None:
        """Our record lies in the membership from now on."""
        self._known_at = time.monotonic() + JOIN_SECONDS

    def left(self) -> None:
        """It may lie there no longer."""
        self._known_at = math.inf

    def holds(self, entries: Sequence[EntryId]) -> list[bool]:
        return [bool(self._holders(entry)) for entry in entries]

    def bring(self, request: EntriesWanted, then: Then) -> None:
        if not self._tasks.has_room or not any(self.holds(request.entries)):
            then()
        else:
            self._tasks.start(self._bring(request, then))

    def find(self, entries: Sequence[EntryId], then: Found) -> None:
        if self._tasks.has_room:
            self._tasks.start(self._find(entries, then))
        else:
            then(())

    async def _find(self, entries: Sequence[EntryId], then: Found) -> None:
        """All of their holders at once."""
        found: set[EntryId] = set()
        by_holder: dict[str, tuple[PeerLink, list[EntryId]]] = {}
        for entry in entries:
            for holder in self._holders(entry):
                by_holder.setdefault(holder.record.id, (holder.link, []))[1].append(entry)
        try:
            floor = self._tools.floor_of(STRINGS)
            await asyncio.gather(*(_ask(*held, floor, found) for held in by_holder.values()))
        finally:
            then(found)

    async def _bring(self, request: EntriesWanted, then: Then) -> None:
        """What is late for this request comes nevertheless, for the next."""
        asked: set[tuple[EntryId, str]] = set()
        missing = list(dict.fromkeys(request.entries))
        try:
            async with asyncio.timeout(request.deadline - time.monotonic()):
                for _ in range(MAX_HOLDERS):
                    under_way = self._ask_all(missing, asked, request.priority)
                    if not under_way:
                        break
                    await asyncio.wait(under_way)
                    missing = self._tools.store.absent(missing, time.monotonic())
        except TimeoutError:
            logger.info("peer_entries_late count=%d", len(missing))
        finally:
            then()

    def _ask_all(
        self, entries: Sequence[EntryId], asked: set[tuple[EntryId, str]], priority: Priority
    ) -> set[asyncio.Task[None]]:
        """Each entry from its first holder that was not `asked` yet, or by whoever brings it
        already."""
        under_way: set[asyncio.Task[None]] = set()
        by_holder: dict[str, tuple[Neighbour, list[EntryId]]] = {}
        for entry in entries:
            if entry in self._coming:
                under_way.add(self._coming[entry])
                continue
            for holder in self._holders(entry):
                instance = holder.record.instance
                if (entry, instance) not in asked:
                    asked.add((entry, instance))
                    by_holder.setdefault(instance, (holder, []))[1].append(entry)
                    break
        for neighbour, wanted in by_holder.values():
            task = self._tasks.start(self._fetch(neighbour.link, wanted, priority))
            self._coming.update(dict.fromkeys(wanted, task))
            task.add_done_callback(partial(self._came, wanted))
            under_way.add(task)
        return under_way

    def _came(self, entries: Sequence[EntryId], task: asyncio.Task[None]) -> None:
        for entry in entries:
            del self._coming[entry]

    async def _fetch(self, link: PeerLink, entries: Sequence[EntryId], priority: Priority) -> None:
        """Brings what the peer has of them."""
        asked_at = time.monotonic()
        floor = self._tools.floor_of(STRINGS)
        pins = PeerPins(link)
        with self._fences.watch(entries, asked_at) as unchanged:
            try:
                message = wire.Lookup(list(entries), PIN_SECONDS, local_only=True, floor=floor)
                reply = await link.ask(message, wire.LookupReply, timeout_s=ASK_SECONDS)
                pins.add(reply.ticket)
                found = read_strings(reply, len(entries))
                if self._tools.floor_of(STRINGS) != floor:  # cleared meanwhile
                    found = []
            except StoreError as error:
                logger.info("peer_entries_failed peer=%s reason=%s", link.record.id, error)
                found = []
            pieces = [
                piece
                for entry, remote in zip(entries, found, strict=False)
                if remote is not None
                and entry in unchanged
                and (piece := self._place(entry, remote, asked_at)) is not None
            ]
        if pieces:
            deadline = time.monotonic() + FILL_SECONDS
            source, plan = PinnedSource(pins), FillPlan(pieces)
            await PeerFill(self._tools, link, plan, source, deadline, priority=priority).run()
        else:
            pins.release()

    def _holders(self, entry: EntryId) -> list[Neighbour]:
        """Peers to ask, those that have it in DRAM first, of them the nearest; none while the entry
        is being changed, or while a peer that changes it may not know of us yet."""
        now = time.monotonic()
        if now < self._known_at or self._fences.is_fenced(entry, now):
            return []
        warmest: dict[str, str] = {}  # tier by instance
        for instance, tier in sorted(self._index.holders(entry), key=lambda place: place[1]):
            warmest.setdefault(instance, tier)
        neighbours = [each for each in map(self._roster.find, warmest) if each is not None]
        neighbours.sort(
            key=lambda each: (warmest[each.record.instance], -each.link.nearness.closeness)
        )
        return [each for each in neighbours if each.is_readable]

    def _place(self, entry: EntryId, remote: RemoteString, asked_at: float) -> Piece | None:
        """A reservation for what the peer has; None when nothing is left to do, or no room."""
        store, length = self._tools.store, remote.length
        if length > store.max_entry_bytes:
            return None
        lifetime = remote.lifetime_s
        (got,) = store.reserve_entry_fill(
            FILL_OWNER,
            [entry],
            [length],
            origin=Origin(Tier.DRAM, REMOTE_TRANSPORT),
            ends_at=None if lifetime is None else asked_at + lifetime,
            soft_pin=remote.soft_pin,
            now=time.monotonic(),
        )
        if got.status is not ReserveStatus.RESERVED:
            return None
        if not length:
            checksum = remote.place.checksums[0]
            store.commit(FILL_OWNER, [got.slot], [got.generation], [checksum], time.monotonic())
            return None
        return Piece(
            key=entry,
            shard=WHOLE,
            slot=got.slot,
            generation=got.generation,
            memory=store.reserved_buffer(FILL_OWNER, got.slot, got.generation),
            num_extents=1,
            stride=length,
            extent_bytes=length,
            remote=remote.place,
        )


async def _ask(link: PeerLink, entries: Sequence[EntryId], floor: int, found: set[EntryId]) -> None:
    """Adds to `found` what the peer has of these."""
    message = wire.Exists(list(entries), local_only=True, floor=floor)
    try:
        reply = await link.ask(message, wire.ExistsReply, timeout_s=ASK_SECONDS)
    except StoreError as error:
        logger.info("peer_entries_failed peer=%s reason=%s", link.record.id, error)
    else:
        found.update(compress(entries, reply.found))

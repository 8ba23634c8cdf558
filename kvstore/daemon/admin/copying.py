"""Routes that have other stores take copies of what lies here, and what a drain copies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Container, Sequence
from functools import partial

import msgspec

from ...errors import InvalidRequest
from ...keys import EntryId
from ...service import AnyRoute, Call, Route
from ...store import DropReason, EntryInfo
from ..peers import Confirmed, Copied, Item, Peers, keep_here
from ..settings import PEERS_NEED
from ..tiers import Tiering
from .bodies import CopyAnswer, CopyRequest
from .keys import TextKey, key_of, parse_key, parse_key_prefix, parse_namespace
from .listing import PAGE, Listing

LOOKED_UP_AT_ONCE = 256
MAX_COPIED = 1 << 16
"""Entries that one request means; what is beyond is left."""
BEYOND = (
    f"one request takes {MAX_COPIED} entries: repeat a move or a drain; narrow a copy by "
    "namespace, key or prefix"
)

PINNED_HERE = "it is copied, and stays here for as long as an operator's pin: unpin it, then repeat"


class CopyRoutes:
    """`pinned`: keys that operators keep here, which a move leaves."""

    def __init__(
        self,
        listing: Listing,
        peers: Peers | None,
        tiering: Tiering | None,
        pinned: Callable[[], Container[TextKey]],
    ) -> None:
        self._pinned = pinned
        self._listing = listing
        self._peers = peers
        self._tiering = tiering

    def routes(self) -> list[AnyRoute]:
        return [
            Route(
                method="POST",
                path="/v1/copy",
                handler=self._copy,
                summary="Have another node take copies",
                request=CopyRequest,
                response=CopyAnswer,
            ),
            Route(
                method="POST",
                path="/v1/move",
                handler=self._move,
                summary="As copy; what the other node is known to hold ends here",
                request=CopyRequest,
                response=CopyAnswer,
            ),
        ]

    def check_node(self, node: str | None) -> None:
        """Raises InvalidRequest when there is no such other node."""
        if node is not None:
            self._needed_peers().copies.check_node(node)

    async def spread_hot(self, to: str | None, seconds: float) -> Copied:
        """What is in DRAM here and nowhere else, the last used first."""
        deadline = time.monotonic() + seconds
        if self._peers is None:
            return Copied()
        infos: list[EntryInfo] = []
        async for page in self._pages_in_dram(None, None):
            infos += page
        infos.sort(key=lambda info: info.idle_s)
        items: list[Item] = []
        num_beyond = 0
        for start in range(0, len(infos), LOOKED_UP_AT_ONCE):
            part = [self._item(info) for info in infos[start : start + LOOKED_UP_AT_ONCE]]
            lacking, room = self._peers.copies.only_here(part), MAX_COPIED - len(items)
            items += lacking[:room]
            num_beyond += len(lacking[room:])
            await asyncio.sleep(0)  # let clients have a turn
        copied = await self._peers.copies.run(items, to=to, deadline=deadline)
        if num_beyond:
            copied.fail(num_beyond, BEYOND)
        return copied

    async def _copy(self, call: Call[CopyRequest, None]) -> CopyAnswer:
        return await self._run(call.body, keep_here)

    async def _move(self, call: Call[CopyRequest, None]) -> CopyAnswer:
        kept: set[EntryId] = set()
        told = await self._run(call.body, partial(self._end_here, kept))
        if not kept:
            return told
        left, reason = told.left + len(kept), told.reason or PINNED_HERE
        return msgspec.structs.replace(told, left=left, reason=reason)

    async def _run(self, body: CopyRequest, confirmed: Confirmed) -> CopyAnswer:
        deadline = time.monotonic() + body.seconds
        peers = self._needed_peers()
        self.check_node(body.to)
        items, num_beyond = await self._chosen(body)
        if body.dry_run:
            num_bytes = sum(item.num_bytes for item in items)
            return CopyAnswer(True, {}, num_bytes, 0, len(items) + num_beyond)
        copied = await peers.copies.run(items, to=body.to, deadline=deadline, confirmed=confirmed)
        if num_beyond:
            copied.fail(num_beyond, BEYOND)
        return CopyAnswer(
            dry_run=False,
            nodes=copied.by_node,
            num_bytes=copied.num_bytes,
            ended_here=copied.ended_here,
            left=copied.left,
            reason=copied.reason,
        )

    def _needed_peers(self) -> Peers:
        if self._peers is None:
            raise InvalidRequest(f"this store has no peers to copy to: {PEERS_NEED}")
        return self._peers

    def _end_here(self, kept: set[EntryId], items: Sequence[Item]) -> int:
        """Whoever holds a view or a ticket reads on. Adds what operators pinned to `kept`."""
        pinned = self._pinned()
        kept.update(item.entry for item in items if key_of(item.entry) in pinned)
        entries = [item.entry for item in items if item.entry not in kept]
        ended = self._listing.store.remove(entries, time.monotonic(), DropReason.MOVED)
        if self._tiering is not None:
            on_disk = self._tiering.on_disk(entries)
            self._tiering.drop(on_disk, _ignore)
        return ended

    # -- choosing ---------------------------------------------------------------------

    async def _chosen(self, body: CopyRequest) -> tuple[list[Item], int]:
        """And how many are beyond the bound: of those, what lies in both tiers counts twice."""
        namespace = parse_namespace(body.namespace)
        prefix = parse_key_prefix(body.key_prefix) if body.key_prefix is not None else None
        keys = None if body.keys is None else {parse_key(key) for key in body.keys}
        items: dict[EntryId, Item] = {}
        num_beyond = 0
        async for page in self._pages(namespace, prefix):
            for info in page:
                if keys is None or parse_key(info.key) in keys:
                    item = self._item(info)
                    if len(items) < MAX_COPIED:
                        items.setdefault(item.entry, item)
                    else:
                        num_beyond += item.entry not in items
        return list(items.values()), num_beyond

    async def _pages(
        self, namespace: bytes | None, prefix: TextKey | None
    ) -> AsyncIterator[list[EntryInfo]]:
        """Of DRAM, then of the disk."""
        async for page in self._pages_in_dram(namespace, prefix):
            yield page
        cursor = "" if self._listing.disk is not None else None
        while cursor is not None:
            assert self._listing.disk is not None
            found = self._listing.disk.page(namespace, prefix, PAGE, cursor)
            yield found.entries
            cursor = found.cursor or None
            await asyncio.sleep(0)  # let clients have a turn

    async def _pages_in_dram(
        self, namespace: bytes | None, prefix: TextKey | None
    ) -> AsyncIterator[list[EntryInfo]]:
        cursor: str | None = ""
        while cursor is not None:
            found = self._listing.page(namespace, prefix, PAGE, cursor)
            yield found.entries
            cursor = found.cursor or None
            await asyncio.sleep(0)  # let clients have a turn

    def _item(self, info: EntryInfo) -> Item:
        entry = EntryId(parse_key(info.key).entry_id + bytes.fromhex(info.shard))
        parent = self._listing.store.parent_of(entry) if info.shard else b""
        return Item(entry, bytes.fromhex(info.namespace), info.num_bytes, parent)


def _ignore(durable: bool) -> None:
    """What comes back with the disk is a copy of what others hold, or they have barred it."""

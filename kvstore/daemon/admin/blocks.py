"""Routes on single entries: what is stored, under which key, why not, and removing it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Set as AbstractSet

import msgspec
from aiohttp import web

from ...errors import StoreError
from ...keys import EntryId
from ...service import AnyRoute, Call, HttpError, Plain, Route
from ...store import EntryPage, Explanation
from ...types import Tier
from ..peers import Peers
from ..sources import EntryChanges
from .bodies import BlockAnswer, BlocksQuery, KeyQuery, RemoveAnswer, RemoveQuery
from .disk import CURSOR
from .keys import TextKey, parse_key, parse_key_prefix, parse_namespace, parse_path_key
from .listing import Listing


class BlockRoutes:
    """`peers` None: there are no other stores to reach."""

    def __init__(self, listing: Listing, peers: Peers | None) -> None:
        self._listing = listing
        self._peers = peers

    def routes(self) -> list[AnyRoute]:
        return [
            Route(
                method="GET",
                path="/v1/blocks",
                handler=self._list_blocks,
                summary="What is stored, page by page",
                query=BlocksQuery,
                response=EntryPage,
            ),
            Route(
                method="GET",
                path="/v1/blocks/{key:.+}",
                handler=self._get_block,
                summary="What is stored under one key",
                response=BlockAnswer,
            ),
            Route(
                method="DELETE",
                path="/v1/blocks/{key:.+}",
                handler=self._remove_block,
                summary="Remove a string entry, or all shards of a block, at every node",
                query=RemoveQuery,
                response=RemoveAnswer,
            ),
            Route(
                method="GET",
                path="/v1/explain",
                handler=self._explain,
                summary="Why a key is here or not",
                query=KeyQuery,
                response=Explanation,
            ),
        ]

    async def _list_blocks(self, call: Call[None, BlocksQuery]) -> EntryPage:
        """DRAM's pages, then those of the disk, unless `tier` says which."""
        query = call.query
        namespace = parse_namespace(query.namespace)
        prefix = parse_key_prefix(query.key_prefix) if query.key_prefix is not None else None
        on_disk = query.tier == "nvme" or query.cursor.startswith(CURSOR)
        if on_disk:
            if self._listing.disk is None:
                return EntryPage([])
            return self._listing.disk.page(namespace, prefix, query.limit, query.cursor)
        page = self._listing.page(namespace, prefix, query.limit, query.cursor)
        if page.cursor or query.tier == "dram" or self._listing.disk is None:
            return page
        return EntryPage(page.entries, CURSOR)

    async def _get_block(self, call: Plain) -> BlockAnswer:
        text = _raw_key(call.http)
        entries = await self._listing.entries_of(parse_path_key(text))
        if not entries:
            raise HttpError(404, "not_found", f"nothing is stored under {text[:200]}")
        return BlockAnswer(entries[0].key, entries)

    async def _remove_block(self, call: Call[None, RemoveQuery]) -> RemoveAnswer:
        key = parse_path_key(_raw_key(call.http))
        namespace = parse_namespace(call.query.namespace)
        if self._peers is not None:
            return await self._remove_everywhere(self._peers.changes, key, namespace)
        shards = {bytes.fromhex(entry.shard) for entry in await self._listing.entries_of(key)}
        entries = [EntryId(key.entry_id + shard) for shard in shards]
        self._listing.store.remove(entries, time.monotonic())
        if self._listing.disk is not None:
            await self._listing.disk.drop(entries)
        return RemoveAnswer(len(entries))

    async def _remove_everywhere(
        self, changes: EntryChanges, key: TextKey, namespace: bytes | None
    ) -> RemoveAnswer:
        """As a client's removal: gone here while no other store has it or changes it."""
        store, disk, entry = self._listing.store, self._listing.disk, EntryId(key.entry_id)
        found = await self._listing.entries_of(key)
        here = {EntryId(key.entry_id + bytes.fromhex(each.shard)) for each in found}
        gone: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        dropping: list[asyncio.Task[None]] = []

        def apply(dropped: AbstractSet[EntryId]) -> None:
            ids = list(here.union(store.ids_of(entry) if key.is_block else [entry]))
            was_here = store.remove(ids, time.monotonic())
            if disk is not None:
                dropping.append(asyncio.create_task(disk.drop(ids)))
            if not gone.done():  # whoever asked may have gone away
                gone.set_result(max(was_here, len(dropped)))

        def fail(error: StoreError) -> None:
            if not gone.done():
                gone.set_exception(error)

        changes.change([entry], apply, fail, namespaces=[namespace] if namespace else ())
        num_gone = await gone
        for task in dropping:
            await task
        return RemoveAnswer(max(num_gone, len(here)))

    async def _explain(self, call: Call[None, KeyQuery]) -> Explanation:
        key = parse_key(call.query.key)
        found = await self._listing.entries_of(key)
        tiers = Counter(entry.tier for entry in found)
        if not found or (not key.is_block and Tier.NVME not in tiers):
            explained = self._listing.store.explain(EntryId(key.entry_id))
        else:
            what = " of its shards" if key.is_block else ""
            places = ", ".join(f"{count}{what} in {tier}" for tier, count in tiers.items())
            explained = Explanation(call.query.key, "committed", places)
        entry = EntryId(key.entry_id + bytes.fromhex(found[0].shard) if found else key.entry_id)
        replicas = self._peers.replicas(entry) if self._peers is not None else None
        if replicas is None:
            return explained
        wanted, nodes = replicas
        return msgspec.structs.replace(explained, replicas=wanted, nodes=tuple(nodes))


def _raw_key(request: web.Request) -> str:
    """The key in the path, not decoded: decoding twice would make another key of one with a %."""
    return request.rel_url.raw_path.removeprefix("/v1/blocks/")

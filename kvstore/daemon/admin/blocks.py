"""Routes on single entries: what is stored, under which key, why not, and removing it."""

from __future__ import annotations

import time
from collections import Counter

from ...keys import EntryId
from ...service import AnyRoute, Call, HttpError, Plain, Route
from ...store import EntryPage, Explanation
from ...types import Tier
from .bodies import BlockAnswer, BlocksQuery, KeyQuery, RemoveAnswer
from .disk import CURSOR
from .keys import parse_key, parse_key_prefix, parse_namespace, parse_path_key
from .listing import Listing


class BlockRoutes:
    def __init__(self, listing: Listing) -> None:
        self._listing = listing

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
                summary="Remove a string entry, or a block with all its shards",
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
        text = _raw_key(call)
        entries = await self._listing.entries_of(parse_path_key(text))
        if not entries:
            raise HttpError(404, "not_found", f"nothing is stored under {text[:200]}")
        return BlockAnswer(entries[0].key, entries)

    async def _remove_block(self, call: Plain) -> RemoveAnswer:
        key = parse_path_key(_raw_key(call))
        shards = {bytes.fromhex(entry.shard) for entry in await self._listing.entries_of(key)}
        entries = [EntryId(key.entry_id + shard) for shard in shards]
        self._listing.store.remove(entries, time.monotonic())
        if self._listing.disk is not None:
            await self._listing.disk.drop(entries)
        return RemoveAnswer(len(entries))

    async def _explain(self, call: Call[None, KeyQuery]) -> Explanation:
        key = parse_key(call.query.key)
        found = await self._listing.entries_of(key)
        tiers = Counter(entry.tier for entry in found)
        if not found or (not key.is_block and Tier.NVME not in tiers):
            return self._listing.store.explain(EntryId(key.entry_id))
        what = " of its shards" if key.is_block else ""
        places = ", ".join(f"{count}{what} in {tier}" for tier, count in tiers.items())
        return Explanation(call.query.key, "committed", places)


def _raw_key(call: Plain) -> str:
    """The key in the path, not decoded: decoding twice would make another key of one with a %."""
    return call.http.rel_url.raw_path.removeprefix("/v1/blocks/")

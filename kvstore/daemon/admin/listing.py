"""Pages of what is stored, in DRAM and on disk, as the routes share them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Collection

from ...errors import InvalidRequest
from ...keys import EntryId
from ...store import EntryInfo, EntryPage, Store
from .disk import DiskInspection
from .keys import TextKey, parse_key

PAGE = 1000


class Listing:
    """`disk` None: there is no NVMe tier."""

    def __init__(self, store: Store, disk: DiskInspection | None) -> None:
        self.store = store
        self.disk = disk

    async def entries_of(self, key: TextKey) -> list[EntryInfo]:
        """In whatever tier."""
        in_dram = await self.entries_in_dram(key)
        return in_dram + self.disk.entries_of(key) if self.disk else in_dram

    async def entries_in_dram(self, key: TextKey) -> list[EntryInfo]:
        """Looks at every entry, in turns with clients, unless none is surely there."""
        if not key.is_block and not self.store.exists([EntryId(key.entry_id)], time.monotonic())[0]:
            return []
        found: list[EntryInfo] = []
        cursor = ""
        while True:
            page = self.page(None if key.is_block else b"", key, PAGE, cursor)
            found += [entry for entry in page.entries if parse_key(entry.key) == key]
            cursor = page.cursor
            if not cursor:
                return found
            await asyncio.sleep(0)  # let clients have a turn

    async def ids_in_dram(self, keys: Collection[TextKey]) -> dict[TextKey, list[EntryId]]:
        """Of those that lie there: a string's entry, a block's shards. One walk for all blocks."""
        strings = [key for key in keys if not key.is_block]
        there = self.store.exists([EntryId(key.entry_id) for key in strings], time.monotonic())
        found = {
            key: [EntryId(key.entry_id)]
            for key, is_there in zip(strings, there, strict=True)
            if is_there
        }
        blocks = {key for key in keys if key.is_block}
        common = os.path.commonprefix([key.data for key in blocks])  # noqa: RUF071 - of bytes
        prefix = TextKey(True, common or b"")
        cursor = "" if blocks else None
        while cursor is not None:
            page = self.page(None, prefix, PAGE, cursor)
            for entry in page.entries:
                if (key := parse_key(entry.key)) in blocks:
                    shard = bytes.fromhex(entry.shard)
                    found.setdefault(key, []).append(EntryId(key.entry_id + shard))
            cursor = page.cursor or None
            await asyncio.sleep(0)  # let clients have a turn
        return found

    def page(
        self, namespace: bytes | None, prefix: TextKey | None, limit: int, cursor: str
    ) -> EntryPage:
        """A page may hold less than `limit` and still not be the last: its cursor tells."""
        if prefix is not None and not prefix.is_block:
            if namespace:
                raise InvalidRequest("a string key lies in no namespace: leave namespace out")
            namespace = b""
        page = self.store.list_blocks(
            namespace=namespace,
            key_prefix=prefix.data if prefix else b"",
            limit=limit,
            cursor=cursor,
            now=time.monotonic(),
        )
        if prefix is None or not prefix.is_block:
            return page
        blocks = [entry for entry in page.entries if entry.key.startswith("kv:")]
        return EntryPage(blocks, page.cursor)

    async def count(self, namespace: bytes | None) -> int:
        """Entries in DRAM."""
        count, cursor = 0, ""
        while True:
            page = self.page(namespace, None, PAGE, cursor)
            count += len(page.entries)
            cursor = page.cursor
            if not cursor:
                return count
            await asyncio.sleep(0)

    async def count_others(self, namespace: bytes | None) -> int:
        """Entries that lie on disk and not in DRAM."""
        return await self.disk.count_others(namespace) if self.disk else 0

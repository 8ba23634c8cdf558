"""What an operator asks of the NVMe tier: which entries there are, dropping some of them.

The tier is read a page at a time, in turns with clients; nothing here knows it as a whole.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from ...errors import InvalidRequest, StoreUnavailable
from ...keys import EntryId, block_key_of, is_block, shard_of
from ...nvme import NvmeLocation
from ...store import EntryInfo, EntryPage, Evicted, EvictScope, Store, key_text
from ...types import Tier
from ..tiers import NOT_DURABLE, Tiering
from .keys import TextKey

PAGE = 512
CURSOR = "nvme:"
"""Cursors of pages of this tier begin so; the rest is hex."""
Drop = Callable[[list[EntryId]], Awaitable[None]]


class DiskInspection:
    """Answers in the loop that owns the tier."""

    def __init__(self, store: Store, tiering: Tiering) -> None:
        self._store = store
        self._tiering = tiering

    def page(
        self, namespace: bytes | None, prefix: TextKey | None, limit: int, cursor: str
    ) -> EntryPage:
        """A page may hold less than `limit`, even nothing, and not be the last: its cursor
        tells."""
        try:
            after = bytes.fromhex(cursor.removeprefix(CURSOR))
        except ValueError as error:
            raise InvalidRequest(f"cursor {cursor[:40]!r} is not one this store gave") from error
        found, after = self._tiering.page(after, limit)
        infos = [_info(each) for each in found if _matches(each, namespace, prefix)]
        return EntryPage(infos, CURSOR + after.hex() if after else "")

    def entries_of(self, key: TextKey) -> list[EntryInfo]:
        """All that lies here under one key."""
        return [_info(location) for location in self._tiering.locate_key(key.entry_id)]

    async def count_others(self, namespace: bytes | None) -> int:
        """Entries that lie here and not in DRAM."""
        count = 0
        async for found in self._pages(lambda each: _matches(each, namespace, None)):
            entries = [EntryId(each.entry) for each in found]
            count += self._store.exists(entries, time.monotonic()).count(False)
        return count

    async def evict(self, scope: EvictScope, prefix: TextKey | None) -> DiskEviction:
        """What lies in scope, to be carried out or not. This tier does not know when an entry was
        last used: `older_than_s` is refused."""
        if scope.older_than_s is not None:
            raise InvalidRequest(
                "older_than_s works on dram only: the nvme tier keeps no times of use; give tier "
                "dram, or leave older_than_s out"
            )
        chosen: list[NvmeLocation] = []
        missing = scope.num_bytes
        async for found in self._in_scope(scope, prefix):
            for location in found:
                if missing is not None and missing <= 0:
                    break
                chosen.append(location)
                missing = None if missing is None else missing - location.length
        return DiskEviction(self._measure(chosen), chosen, self.drop)

    async def drop(self, entries: list[EntryId]) -> None:
        """Returns when it is durable; raises StoreUnavailable when it cannot be."""
        await _durably(lambda then: self._tiering.drop(entries, then))

    async def clear(self, namespace: bytes | None) -> None:
        """As `drop`, of a namespace (digest; b"": string entries) or everything."""
        digest = None if namespace is None else namespace.hex()
        await _durably(lambda then: self._tiering.clear(digest, then))

    async def _in_scope(
        self, scope: EvictScope, prefix: TextKey | None
    ) -> AsyncIterator[list[NvmeLocation]]:
        namespace = b"" if scope.strings_only else scope.namespace
        if scope.entries is None:
            async for found in self._pages(lambda each: _matches(each, namespace, prefix)):
                yield found
            return
        for entry in scope.entries:
            found = self._tiering.locate_key(entry)
            yield [each for each in found if _matches(each, namespace, prefix)]

    async def _pages(
        self, wanted: Callable[[NvmeLocation], bool]
    ) -> AsyncIterator[list[NvmeLocation]]:
        after = b""
        while True:
            found, after = self._tiering.page(after, PAGE)
            yield [each for each in found if wanted(each)]
            if not after:
                return
            await asyncio.sleep(0)  # let clients have a turn

    def _measure(self, chosen: list[NvmeLocation]) -> Evicted:
        """A block's tokens count once, however many of its shards are among them."""
        blocks = {
            block_key_of(each.entry): each.namespace for each in chosen if is_block(each.entry)
        }
        tokens = sum(map(self._store.block_tokens, blocks.values()))
        return Evicted(len(chosen), sum(each.length for each in chosen), tokens)


class DiskEviction:
    """As `store.Eviction`, of what lies on disk; `takes` is what it frees."""

    def __init__(self, takes: Evicted, chosen: Sequence[NvmeLocation], drop: Drop) -> None:
        self.takes = takes
        self._chosen = chosen
        self._drop = drop

    async def carry_out(self) -> None:
        """Returns when it is durable; raises StoreUnavailable when it cannot be."""
        for start in range(0, len(self._chosen), PAGE):
            part = self._chosen[start : start + PAGE]
            await self._drop([EntryId(each.entry) for each in part])


async def _durably(begin: Callable[[Callable[[bool], None]], None]) -> None:
    done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def told(durable: bool) -> None:
        if not done.done():
            done.set_result(durable)

    begin(told)
    if not await done:
        raise StoreUnavailable(NOT_DURABLE)


def _matches(location: NvmeLocation, namespace: bytes | None, prefix: TextKey | None) -> bool:
    if namespace is not None and location.namespace != namespace.hex():
        return False
    return prefix is None or location.entry.startswith(prefix.entry_id)


def _info(location: NvmeLocation) -> EntryInfo:
    entry = location.entry
    return EntryInfo(
        key=key_text(entry),
        tier=Tier.NVME,
        num_bytes=location.length,
        namespace=location.namespace,
        shard=shard_of(entry).hex() if is_block(entry) else "",
    )

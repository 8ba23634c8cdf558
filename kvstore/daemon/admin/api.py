"""Routes of the admin interface and what they do."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from aiohttp import web

from ...errors import Busy, InvalidRequest
from ...keys import EntryId
from ...service import (
    AnyRoute,
    Call,
    HttpError,
    Plain,
    Route,
    ServerEvent,
    probe_routes,
    send_events,
)
from ...store import (
    AuditReport,
    EntryInfo,
    EntryPage,
    Evicted,
    EvictScope,
    Explanation,
    Store,
)
from ...types import Tier
from ..tiers import Tiering
from .bodies import (
    BlockAnswer,
    BlocksQuery,
    ClearAnswer,
    ClearRequest,
    ConfigAnswer,
    EvictAnswer,
    EvictRequest,
    KeyQuery,
    RemoveAnswer,
)
from .disk import CURSOR, DiskInspection
from .event_stream import kv_events
from .keys import TextKey, parse_key, parse_key_prefix, parse_namespace, parse_path_key
from .metrics import render
from .report import StoreReport

MAX_EVENT_STREAMS = 64
PAGE = 1000


class AdminApi:
    """Answers in the loop that owns the store. `is_ready` says whether work is taken."""

    def __init__(
        self,
        store: Store,
        *,
        settings: msgspec.Struct,
        report: Callable[[], StoreReport],
        is_ready: Callable[[], bool],
        tiering: Tiering | None = None,
    ) -> None:
        self._store = store
        self._disk = DiskInspection(store, tiering) if tiering else None
        self._settings = settings
        self._report = report
        self._is_ready = is_ready
        self.num_event_streams = 0

    def routes(self) -> list[AnyRoute]:
        return [
            *probe_routes(self._check_ready, self._render_metrics),
            *self._block_routes(),
            *self._whole_store_routes(),
        ]

    def _block_routes(self) -> list[AnyRoute]:
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

    def _whole_store_routes(self) -> list[AnyRoute]:
        return [
            Route(
                method="GET",
                path="/v1/stats",
                handler=self._stats,
                summary="Sizes and counters",
                response=StoreReport,
            ),
            Route(
                method="POST",
                path="/v1/evict",
                handler=self._evict,
                summary="Drop unpinned entries",
                request=EvictRequest,
                response=EvictAnswer,
            ),
            Route(
                method="POST",
                path="/v1/clear",
                handler=self._clear,
                summary="Remove a namespace, all string entries, or everything",
                request=ClearRequest,
                response=ClearAnswer,
            ),
            Route(
                method="POST",
                path="/v1/audit",
                handler=self._audit,
                summary="Walk everything and compare with the accounts (stops the store meanwhile)",
                response=AuditReport,
            ),
            Route(
                method="GET",
                path="/v1/config",
                handler=self._config,
                summary="Settings in force",
                response=ConfigAnswer,
            ),
            Route(
                method="GET",
                path="/v1/events",
                handler=self._events,
                summary="KV events: a snapshot, then every change",
                stream=dict[str, Any],
            ),
        ]

    def _check_ready(self, call: Plain) -> None:
        if not self._is_ready():
            raise HttpError(503, "not_ready", "starting or shutting down", retryable=True)

    def _render_metrics(self) -> bytes:
        return render(self._report())

    # -- entries ----------------------------------------------------------------------

    async def _list_blocks(self, call: Call[None, BlocksQuery]) -> EntryPage:
        """DRAM's pages, then those of the disk, unless `tier` says which."""
        query = call.query
        namespace = parse_namespace(query.namespace)
        prefix = parse_key_prefix(query.key_prefix) if query.key_prefix is not None else None
        on_disk = query.tier == "nvme" or query.cursor.startswith(CURSOR)
        if on_disk:
            if self._disk is None:
                return EntryPage([])
            return self._disk.page(namespace, prefix, query.limit, query.cursor)
        page = self._page(namespace, prefix, query.limit, query.cursor)
        if page.cursor or query.tier == "dram" or self._disk is None:
            return page
        return EntryPage(page.entries, CURSOR)

    async def _get_block(self, call: Plain) -> BlockAnswer:
        text = _raw_key(call)
        entries = await self._entries_of(parse_path_key(text))
        if not entries:
            raise HttpError(404, "not_found", f"nothing is stored under {text[:200]}")
        return BlockAnswer(entries[0].key, entries)

    async def _remove_block(self, call: Plain) -> RemoveAnswer:
        key = parse_path_key(_raw_key(call))
        shards = {bytes.fromhex(entry.shard) for entry in await self._entries_of(key)}
        entries = [EntryId(key.entry_id + shard) for shard in shards]
        self._store.remove(entries, time.monotonic())
        if self._disk is not None:
            await self._disk.drop(entries)
        return RemoveAnswer(len(entries))

    async def _explain(self, call: Call[None, KeyQuery]) -> Explanation:
        key = parse_key(call.query.key)
        found = await self._entries_of(key)
        tiers = Counter(entry.tier for entry in found)
        if not found or (not key.is_block and Tier.NVME not in tiers):
            return self._store.explain(EntryId(key.entry_id))
        what = " of its shards" if key.is_block else ""
        places = ", ".join(f"{count}{what} in {tier}" for tier, count in tiers.items())
        return Explanation(call.query.key, "committed", places)

    async def _entries_of(self, key: TextKey) -> list[EntryInfo]:
        """In whatever tier."""
        in_dram = await self._entries_in_dram(key)
        return in_dram + self._disk.entries_of(key) if self._disk else in_dram

    async def _entries_in_dram(self, key: TextKey) -> list[EntryInfo]:
        """Looks at every entry, in turns with clients, unless none is surely there."""
        if (
            not key.is_block
            and not self._store.exists([EntryId(key.entry_id)], time.monotonic())[0]
        ):
            return []
        found: list[EntryInfo] = []
        cursor = ""
        while True:
            page = self._page(None if key.is_block else b"", key, PAGE, cursor)
            found += [entry for entry in page.entries if parse_key(entry.key) == key]
            cursor = page.cursor
            if not cursor:
                return found
            await asyncio.sleep(0)  # let clients have a turn

    def _page(
        self, namespace: bytes | None, prefix: TextKey | None, limit: int, cursor: str
    ) -> EntryPage:
        """A page may hold less than `limit` and still not be the last: its cursor tells."""
        if prefix is not None and not prefix.is_block:
            if namespace:
                raise InvalidRequest("a string key lies in no namespace: leave namespace out")
            namespace = b""
        page = self._store.list_blocks(
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

    # -- the whole store --------------------------------------------------------------

    async def _stats(self, call: Plain) -> StoreReport:
        return self._report()

    async def _evict(self, call: Call[EvictRequest, None]) -> EvictAnswer:
        body = call.body
        namespace = parse_namespace(body.namespace)
        prefix = parse_key_prefix(body.key_prefix) if body.key_prefix is not None else None
        strings_only = namespace == b"" or (prefix is not None and not prefix.is_block)
        scope = EvictScope(
            namespace=namespace or None,
            strings_only=strings_only,
            entries=None
            if body.keys is None
            else tuple(parse_key(key).entry_id for key in body.keys),
            key_prefix=prefix.data if prefix else b"",
            older_than_s=body.older_than_s,
            num_bytes=body.bytes,
        )
        tiers: dict[str, Evicted] = {}
        if body.tier != "nvme":
            eviction = self._store.evict(scope, time.monotonic())
            if not body.dry_run:
                for _ in eviction.carry_out():
                    await asyncio.sleep(0)  # let clients have a turn
            tiers[Tier.DRAM.value] = eviction.takes
        asks_age = body.older_than_s is not None and body.tier is None
        if body.tier != "dram" and self._disk is not None and not asks_age:
            tiers[Tier.NVME.value] = await self._disk.evict(
                scope, prefix, carry_out=not body.dry_run
            )
        return EvictAnswer(body.dry_run, tiers)

    async def _clear(self, call: Call[ClearRequest, None]) -> ClearAnswer:
        namespace = parse_namespace(call.body.namespace)
        if call.body.dry_run:
            return ClearAnswer(
                True, await self._count(namespace) + await self._count_others(namespace)
            )
        only_there = await self._count_others(namespace)
        removed = self._store.clear(
            namespace or None, strings_only=namespace == b"", now=time.monotonic()
        )
        if self._disk is not None:
            await self._disk.clear(namespace)
        return ClearAnswer(False, removed + only_there)

    async def _count_others(self, namespace: bytes | None) -> int:
        return await self._disk.count_others(namespace) if self._disk else 0

    async def _count(self, namespace: bytes | None) -> int:
        count, cursor = 0, ""
        while True:
            page = self._page(namespace, None, PAGE, cursor)
            count += len(page.entries)
            cursor = page.cursor
            if not cursor:
                return count
            await asyncio.sleep(0)

    async def _audit(self, call: Plain) -> AuditReport:
        return self._store.audit()

    async def _config(self, call: Plain) -> ConfigAnswer:
        values = msgspec.structs.asdict(self._settings)
        return ConfigAnswer({name: _as_flag(value) for name, value in values.items()})

    async def _events(self, call: Plain) -> web.StreamResponse:
        if self.num_event_streams >= MAX_EVENT_STREAMS:
            raise Busy(f"{MAX_EVENT_STREAMS} event streams are open, the limit; retry later")
        self.num_event_streams += 1
        try:
            return await send_events(call, self._event_source())
        finally:
            self.num_event_streams -= 1

    def _event_source(self) -> AsyncIterator[ServerEvent]:
        return kv_events(self._store.events, str(self._store.instance))


def _raw_key(call: Plain) -> str:
    """The key in the path, not decoded: decoding twice would make another key of one with a %."""
    return call.http.rel_url.raw_path.removeprefix("/v1/blocks/")


def _as_flag(value: object) -> str:
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return ",".join(map(str, value))
    return "none" if value is None else str(value)

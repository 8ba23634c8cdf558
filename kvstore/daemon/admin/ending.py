"""Routes that drop entries: evict, clear, and raising the floor of namespaces."""

from __future__ import annotations

import asyncio
import time

from ...errors import InvalidRequest
from ...service import AnyRoute, Call, HttpError, Route
from ...store import Evicted, EvictScope
from ...types import Tier
from ..clearing import clear_everywhere
from ..floors import FloorKeeper
from ..peers import FloorsTold, Peers
from .bodies import (
    ClearAnswer,
    ClearRequest,
    EvictAnswer,
    EvictRequest,
    FloorAnswer,
    FloorRequest,
)
from .keys import TextKey, parse_key, parse_key_prefix, parse_namespace
from .listing import Listing


class EndingRoutes:
    """`peers` None: floors are of this store alone."""

    def __init__(self, listing: Listing, floors: FloorKeeper, peers: Peers | None) -> None:
        self._listing = listing
        self._floors = floors
        self._peers = peers

    def routes(self) -> list[AnyRoute]:
        return [
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
                path="/v1/floor",
                handler=self._raise_floor,
                summary="Make all that namespaces hold a miss, in the whole cluster, at once",
                request=FloorRequest,
                response=FloorAnswer,
            ),
        ]

    async def _evict(self, call: Call[EvictRequest, None]) -> EvictAnswer:
        body = call.body
        prefix = parse_key_prefix(body.key_prefix) if body.key_prefix is not None else None
        scope = _scope_of(body, prefix)
        tiers: dict[str, Evicted] = {}
        if body.tier != "nvme":
            in_dram = self._listing.store.evict(scope, time.monotonic())
            for _ in in_dram.planning:
                await asyncio.sleep(0)  # let clients have a turn
            if not body.dry_run:
                for _ in in_dram.carry_out():
                    await asyncio.sleep(0)
            tiers[Tier.DRAM.value] = in_dram.takes
        is_of_dram = body.tier is None and body.older_than_s is not None
        if body.tier != "dram" and self._listing.disk is not None and not is_of_dram:
            on_disk = await self._listing.disk.evict(scope, prefix)
            if not body.dry_run:
                await on_disk.carry_out()
            tiers[Tier.NVME.value] = on_disk.takes
        return EvictAnswer(body.dry_run, tiers)

    async def _clear(self, call: Call[ClearRequest, None]) -> ClearAnswer:
        namespace = parse_namespace(call.body.namespace)
        if call.body.dry_run:
            return ClearAnswer(
                True,
                await self._listing.count(namespace) + await self._listing.count_others(namespace),
            )
        removed = await self._listing.count_others(namespace)
        if self._peers is not None and call.body.nodes == "all":
            here = await clear_everywhere(self._floors, self._peers, namespace)
            return ClearAnswer(False, removed + here)
        store, digest = self._listing.store, namespace or None
        sweep = store.begin_clear(digest, strings_only=namespace == b"")
        if self._listing.disk is not None:
            await self._listing.disk.clear(namespace)
        for _ in sweep:
            await asyncio.sleep(0)  # let clients have a turn
        return ClearAnswer(False, removed + sweep.num_gone)

    async def _raise_floor(self, call: Call[FloorRequest, None]) -> FloorAnswer:
        """Answered when it is in force here and durable; says which peers have confirmed it."""
        floors = await self._floors.raise_floors(self._named(call.body))
        told = await self._peers.tell_floors() if self._peers else FloorsTold([], [])
        node = self._listing.store.instance.node
        return FloorAnswer(floors, [node, *told.in_force], told.away)

    def _named(self, body: FloorRequest) -> list[bytes]:
        """Digests of the namespaces that the request means."""
        if [body.namespace, body.weights_id, body.salt].count(None) != 2:
            raise InvalidRequest("give one of namespace, weights_id and salt")
        if body.namespace is not None:
            digest = parse_namespace(body.namespace)
            if not digest:
                raise InvalidRequest("string entries have no floor: use /v1/clear for them")
            return [digest]
        known = self._listing.store.namespaces()
        found = [
            namespace.digest
            for namespace in known
            if body.weights_id in (None, namespace.weights_id)
            and body.salt in (None, namespace.salt)
        ]
        if not found:
            raise HttpError(
                404,
                "not_found",
                f"none of the {len(known)} namespaces opened here since the start has that "
                "weights_id or salt: give the namespace's digest",
            )
        return found


def _scope_of(body: EvictRequest, prefix: TextKey | None) -> EvictScope:
    namespace = parse_namespace(body.namespace)
    keys = None if body.keys is None else tuple(parse_key(key).entry_id for key in body.keys)
    return EvictScope(
        namespace=namespace or None,
        strings_only=namespace == b"" or (prefix is not None and not prefix.is_block),
        entries=keys,
        key_prefix=prefix.data if prefix else b"",
        older_than_s=body.older_than_s,
        num_bytes=body.bytes,
    )

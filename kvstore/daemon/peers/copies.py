"""Copies of what lies here at other stores, made on demand: an operator's copy or move, what is hot
when a store is drained.

    lot ──have the other prefetch it──► it brings it from here ──find it there, pinned──► confirmed

The other store does the work, behind all that its readers wait for. An entry is confirmed once it
lies there whole: blocks are what their keys say, a string entry has the same length and checksum.
A time to live and a soft pin go along; an operator's pin is of its node.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from ... import wire
from ...errors import InvalidRequest, StoreError, StoreTimeout, StoreUnavailable
from ...index import PrefixIndex
from ...keys import EntryId, Namespace, kv_entry_id
from ...store import Store
from ...types import Located
from .block_source import RemoteCopies
from .entry_source import STRINGS
from .filling import FloorOf
from .link import PeerLink
from .lots import Item, Lot, plan_lots
from .pins import PIN_SECONDS, PeerPins
from .remote import RemoteBlocks
from .roster import Neighbour, Roster

logger = logging.getLogger(__name__)

ASK_SECONDS = 2.0
LOT_SECONDS = 20.0
"""For one lot to be there."""
REPLICA_SECONDS = 5.0
"""For one lot of replicas to be there."""
POLL_SECONDS = 0.02

Confirmed = Callable[[Sequence[Item]], int]
"""Told what lies at another store now, while it is pinned there and before anything can change
here; how many entries it did away with here."""


@dataclass(slots=True)
class CopyCounters:
    """Since the start; `left` of the run under way."""

    entries: int = 0
    num_bytes: int = 0
    failed: int = 0
    left: int = 0


@dataclass(slots=True)
class Copied:
    """What came of one run. `left`: for lack of time, of room, or of a store to take them;
    `reason`: the first why."""

    by_node: dict[str, int] = field(default_factory=dict)  # entries
    num_bytes: int = 0
    ended_here: int = 0
    left: int = 0
    reason: str = ""

    def fail(self, count: int, reason: str) -> None:
        self.left += count
        self.reason = self.reason or reason


class _Tier(msgspec.Struct, frozen=True):
    capacity_bytes: int = 0
    used_bytes: int = 0


class _PeerReport(msgspec.Struct, frozen=True):
    remote_copies: RemoteCopies = "keep"


class _PeerStats(msgspec.Struct, frozen=True):
    """Of a peer's stats, what is looked at here."""

    tiers: dict[str, _Tier]
    draining: bool = False
    peers: _PeerReport | None = None


@dataclass(slots=True)
class _Taker:
    """A store that may be asked to take copies. Where blocks read from others are not kept, none
    would be there once it is confirmed."""

    free_bytes: float  # in DRAM
    keeps_blocks: bool


def keep_here(items: Sequence[Item]) -> int:
    """`Confirmed` of a copy."""
    return 0


class PeerCopies:
    """Lives in the loop that owns the store."""

    def __init__(self, store: Store, roster: Roster, index: PrefixIndex, floor_of: FloorOf) -> None:
        self._store = store
        self._roster = roster
        self._index = index
        self._floor_of = floor_of
        self.counters = CopyCounters()

    def only_here(self, items: Sequence[Item]) -> list[Item]:
        """Those of them that no other store has, as far as is known."""
        return [item for item in items if not self._is_elsewhere(item)]

    def check_node(self, node: str) -> None:
        """Raises InvalidRequest when there is no such other store."""
        known = sorted(each.record.id for each in self._roster.neighbours())
        if node not in known:
            raise InvalidRequest(
                f"to is {node!r}; other stores of the cluster: {', '.join(known) or 'none'}"
            )

    async def run(
        self,
        items: Sequence[Item],
        *,
        to: str | None,
        deadline: float,
        confirmed: Confirmed = keep_here,
    ) -> Copied:
        """Copies as many as the time allows, one lot after another, to node `to`, or each lot to
        whoever has most room for it. Raises InvalidRequest when there is no such node."""
        copied = Copied()
        takers = await self._takers(to)
        left = len(items)
        self.counters.left += left
        try:
            for lot in plan_lots(items):
                await self._place(lot, takers, deadline, confirmed, copied)
                self.counters.left -= len(lot.items)
                left -= len(lot.items)
        finally:
            self.counters.left -= left
            self.counters.failed += copied.left
        return copied

    async def _takers(self, to: str | None) -> dict[str, _Taker]:
        """By node, those that can be asked; one that is named takes whatever comes."""
        neighbours = {each.record.id: each for each in self._roster.neighbours()}
        if to is not None:
            self.check_node(to)
            named = await _taker_of(neighbours[to].link)
            return {to: _Taker(math.inf, named is None or named.keeps_blocks)}
        found = await asyncio.gather(*(_taker_of(each.link) for each in neighbours.values()))
        return {node: taker for node, taker in zip(neighbours, found, strict=True) if taker}

    async def _place(
        self,
        lot: Lot,
        takers: dict[str, _Taker],
        deadline: float,
        confirmed: Confirmed,
        copied: Copied,
    ) -> None:
        """At whoever has most room. Who fails is asked no more, as long as there are others."""
        now, node = time.monotonic(), ""
        try:
            if now >= deadline:
                raise StoreTimeout("the time was over")
            node = _choose(takers, lot)
            takers[node].free_bytes -= lot.num_bytes
            await self._copy(lot, node, min(deadline, now + LOT_SECONDS), confirmed, copied)
        except StoreError as error:
            logger.info("copy_failed peer=%s reason=%s", node, error)
            copied.fail(len(lot.items), str(error))
            if len(takers) > 1:
                takers.pop(node, None)

    async def _copy(
        self, lot: Lot, node: str, deadline: float, confirmed: Confirmed, copied: Copied
    ) -> None:
        neighbour = next((n for n in self._roster.neighbours() if n.record.id == node), None)
        if neighbour is None:
            raise StoreUnavailable(f"store {node} has left")
        there, pins = await self._bring(neighbour, lot, deadline)
        try:
            items = [item for item in lot.items if item.entry in there]
            copied.ended_here += confirmed(items) if items else 0
        finally:
            pins.release()
        if len(items) < len(lot.items):
            copied.fail(
                len(lot.items) - len(items),
                f"store {node} did not take it, or has another value under its key",
            )
        num_bytes = sum(item.num_bytes for item in items)
        copied.by_node[node] = copied.by_node.get(node, 0) + len(items)
        copied.num_bytes += num_bytes
        self.counters.entries += len(items)
        self.counters.num_bytes += num_bytes

    async def replicate(self, neighbour: Neighbour, lot: Lot, replicas: int) -> bool:
        """Whether the peer has it all, brought from here behind all that others wait for there. It
        is told how many `replicas` are wanted."""
        deadline = time.monotonic() + REPLICA_SECONDS
        try:
            there, pins = await self._bring(neighbour, lot, deadline, replicas)
        except StoreError as error:
            logger.info("replica_failed peer=%s reason=%s", neighbour.record.id, error)
            return False
        pins.release()
        return there.issuperset(lot.entries)

    async def _bring(
        self, neighbour: Neighbour, lot: Lot, deadline: float, replicas: int = 0
    ) -> tuple[set[EntryId], PeerPins]:
        """What of it lies there when all of it does and we have heard of that, so that our readers
        find it, or at the deadline; pinned there."""
        find = self._find_blocks if lot.namespace else self._find_strings
        while True:
            there, pins = await find(neighbour.link, lot, replicas)
            is_whole = there.issuperset(lot.entries) and all(map(self._is_elsewhere, lot.items))
            if is_whole or time.monotonic() >= deadline:
                return there, pins
            pins.release()
            await asyncio.sleep(POLL_SECONDS)

    async def _find_strings(
        self, link: PeerLink, lot: Lot, replicas: int
    ) -> tuple[set[EntryId], PeerPins]:
        """Has it bring what it lacks, and tells what is there; with `replicas` without a pin."""
        pins = PeerPins(link)
        begin = wire.Prefetch([*lot.entries])
        await link.ask(begin, wire.CountReply, timeout_s=ASK_SECONDS)
        floor = self._floor_of(STRINGS)
        look = wire.Lookup(
            [*lot.entries], PIN_SECONDS, local_only=True, floor=floor, replicas=replicas
        )
        reply = await link.ask(look, wire.LookupReply, timeout_s=ASK_SECONDS)
        pins.add(reply.ticket)
        here = self._store.peek(lot.entries, time.monotonic())
        there = {
            entry
            for entry, mine, theirs in zip(lot.entries, here, reply.found, strict=False)
            if mine is not None and theirs is not None and _are_equal(mine, Located(*theirs))
        }
        return there, pins

    async def _find_blocks(
        self, link: PeerLink, lot: Lot, replicas: int
    ) -> tuple[set[EntryId], PeerPins]:
        """As `_find_strings`, of what is whole."""
        namespace = self._namespace(lot.namespace)
        floor = self._floor_of(lot.namespace)
        number = await link.namespace(namespace, timeout_s=ASK_SECONDS)
        coverage = [shard.pack() for shard in lot.shards]
        begin = wire.PrefetchBlocks(number, b"".join(lot.keys), coverage, replicas=replicas)
        await link.ask(begin, wire.CountReply, timeout_s=ASK_SECONDS)
        blocks = RemoteBlocks(link, namespace, lot.shards, floor=floor)
        offer = await blocks.find(lot.keys, timeout_s=ASK_SECONDS)
        there = {
            kv_entry_id(key, entry.shard)
            for key, entries in zip(lot.keys, offer, strict=False)
            for entry in entries
            if entry.extents == entry.shard.num_layers
        }
        return there, blocks.pins

    def _is_elsewhere(self, item: Item) -> bool:
        return bool(holders_of(self._index, item))

    def _namespace(self, digest: bytes) -> Namespace:
        for namespace in self._store.namespaces():
            if namespace.digest == digest:
                return namespace
        raise StoreUnavailable(
            f"nobody has opened namespace {digest.hex()} here since the start: its blocks lie on "
            "disk, and what they are made of is not known; open it once"
        )


def holders_of(index: PrefixIndex, item: Item) -> set[str]:
    """Other stores (instances) that have it."""
    if item.namespace:
        return index.block_holders(item.namespace.hex(), item.entry)
    return {instance for instance, _ in index.holders(item.entry)}


async def _taker_of(link: PeerLink) -> _Taker | None:
    """None: it cannot be asked, or takes nothing."""
    try:
        reply = await link.ask(wire.GetStats(), wire.StatsReply, timeout_s=ASK_SECONDS)
        stats = msgspec.json.decode(reply.stats, type=_PeerStats)
    except (StoreError, msgspec.MsgspecError):
        return None
    if stats.draining:
        return None
    dram = stats.tiers.get("dram", _Tier())
    keeps_blocks = stats.peers is None or stats.peers.remote_copies == "keep"
    return _Taker(float(dram.capacity_bytes - dram.used_bytes), keeps_blocks)


def _choose(takers: Mapping[str, _Taker], lot: Lot) -> str:
    """Raises StoreUnavailable."""
    able = [node for node, taker in takers.items() if taker.keeps_blocks or not lot.namespace]
    if takers and not able:
        raise StoreUnavailable(
            f"store {', '.join(takers)} keeps no blocks that it reads from others, so it can take "
            "none for good: start it with --remote-copies keep, or name another"
        )
    node = max(able, key=lambda each: takers[each].free_bytes, default="")
    if not node or takers[node].free_bytes < lot.num_bytes:
        raise StoreUnavailable("no other store that can be reached has room for it")
    return node


def _are_equal(mine: Located, theirs: Located) -> bool:
    """What has no checksum here got one on its way."""
    return mine.length == theirs.length and mine.checksum in (0, theirs.checksum)

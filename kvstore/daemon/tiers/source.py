"""This node's disk as a source of what DRAM lacks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Container, Sequence
from itertools import groupby
from typing import NamedTuple

from ...errors import StoreError
from ...keys import BlockKey, EntryId, kv_entry_id
from ...layout import Shard
from ...nvme import NvmeLocation, NvmeTier
from ...store import FILL_OWNER, Origin, ReserveResult, Store
from ...types import ReserveStatus, Tier
from ..counters import TransportCounters
from ..sources import BlocksWanted, EntriesWanted, Then
from .promotion import Fill, Promotion
from .read_ahead import ReadAhead

ORIGIN = Origin(Tier.NVME, "file")
READ_AHEAD_BYTES = 32 << 20
READ_AHEAD_RATIO = 1 / 8
"""Of DRAM."""
FILLED_AHEAD_AT_ONCE = 8
"""Entries read ahead, before others get the loop."""
LOCATED_AT_ONCE = 128
"""Blocks looked for in one read of the index: what follows the first gap is of no use."""


class _Found(NamedTuple):
    """A block that lies on disk, in shards that cover what is wanted."""

    key: BlockKey
    shards: tuple[Shard, ...]
    locations: tuple[NvmeLocation, ...]


class NvmeSource:
    """A BlockSource and an EntrySource. Lives in the loop. `shards` are those that blocks of a
    namespace (digest, hex) lie on disk in: a block written at another parallelism is found too.
    Nothing of a `hidden` namespace is brought."""

    def __init__(
        self,
        store: Store,
        nvme: NvmeTier,
        *,
        loop: asyncio.AbstractEventLoop,
        counters: TransportCounters,
        clock: Callable[[], float],
        shards: dict[str, set[bytes]],
        hidden: Container[str] = (),
    ) -> None:
        self._store = store
        self._nvme = nvme
        self._loop = loop
        self._counters = counters
        self._clock = clock
        self._shards = shards
        self._hidden = hidden
        self.hits = self.misses = 0  # entries asked for (or read ahead) that came, or did not
        most = min(READ_AHEAD_BYTES, int(READ_AHEAD_RATIO * store.settings.capacity_bytes))
        self._read_ahead = ReadAhead(nvme.strings_after, max_bytes=most)
        self._promotions: list[Promotion] = []
        self._waiting: dict[bytes, list[Callable[[], None]]] = {}  # for string entries that fill

    def tick(self) -> None:
        """Goes on with what the disk's queue had no room for."""
        self._promotions = [each for each in self._promotions if not each.is_over]
        for promotion in self._promotions:
            promotion.drop_released()
        for promotion in self._promotions:
            if not promotion.pump():
                break

    # -- blocks -----------------------------------------------------------------------

    def prepare(self, request: BlocksWanted, then: Then) -> None:
        fills: list[Fill] = []
        with contextlib.suppress(StoreError):  # a bound was met: the rest is not brought
            self._fill_blocks(request, fills)
        promotion = self._promote(fills)
        then()
        if promotion is not None:  # seen now, however soon the asker lets go again
            promotion.drop_released()

    def _fill_blocks(self, request: BlocksWanted, fills: list[Fill]) -> None:
        if self._store.namespace(request.namespace).digest.hex() in self._hidden:
            return
        missing = self._store.missing(request.namespace, request.keys, request.coverage)
        for start in range(0, len(missing), LOCATED_AT_ONCE):
            keys = [request.keys[index] for index in missing[start : start + LOCATED_AT_ONCE]]
            found = self._locate(request, keys)
            self.misses += (len(keys) - len(found)) * len(request.coverage)
            reserved, has_room = self._reserve(request.namespace, found)
            fills += reserved
            self.hits += sum(len(block.locations) for block in found) - len(reserved)
            if len(found) < len(keys) or not has_room:
                break

    def _locate(self, request: BlocksWanted, keys: Sequence[BlockKey]) -> list[_Found]:
        """Up to the first that is not whole on disk."""
        exact = tuple(request.coverage)
        wanted = [kv_entry_id(key, shard) for key in keys for shard in exact]
        located = self._nvme.locate(wanted)
        found = []
        for index, key in enumerate(keys):
            locations = located[index * len(exact) : (index + 1) * len(exact)]
            whole = [location for location in locations if location is not None]
            block: _Found | None
            if len(whole) == len(exact):
                block = _Found(key, exact, tuple(whole))
            else:
                block = self._locate_resharded(request, key)
            if block is None or not self._agrees(request.namespace, block):
                break
            found.append(block)
        return found

    def _locate_resharded(self, request: BlocksWanted, key: BlockKey) -> _Found | None:
        digest = self._store.namespace(request.namespace).digest.hex()
        packed = sorted(self._shards.get(digest, ()))
        shards = [Shard.unpack(each) for each in packed]
        located = self._nvme.locate([kv_entry_id(key, shard) for shard in shards])
        present = {
            shard: location
            for shard, location in zip(shards, located, strict=True)
            if location is not None
        }
        needed = self._store.covering(
            request.namespace, [shard.pack() for shard in present], request.coverage
        )
        if not needed:
            return None
        return _Found(key, tuple(needed), tuple(present[shard] for shard in needed))

    def _agrees(self, namespace: int, block: _Found) -> bool:
        """The layout says how long an entry is: what is not so is of no use."""
        for shard, location in zip(block.shards, block.locations, strict=True):
            shape = self._store.fill_geometry(namespace, shard)
            if location.num_extents != shape.num_extents:
                return False
            if set(location.extent_lengths) != {shape.layer_bytes}:
                return False
        return True

    def _reserve(self, namespace: int, found: list[_Found]) -> tuple[list[Fill], bool]:
        """Fills for the blocks, in order; false when there was no room for all."""
        fills: list[Fill] = []
        for shards, blocks in groupby(found, key=lambda block: block.shards):
            run = list(blocks)
            results = self._store.reserve_fill(
                FILL_OWNER,
                namespace,
                [block.key for block in run],
                [block.locations[0].parent for block in run],
                shards,
                origin=ORIGIN,
                now=self._clock(),
            )
            locations = [location for block in run for location in block.locations]
            strides = [self._store.fill_geometry(namespace, shard).stride for shard in shards]
            for index, (result, location) in enumerate(zip(results, locations, strict=True)):
                if result.status is ReserveStatus.RESERVED:
                    stride = strides[index % len(shards)]
                    offsets = [stride * extent for extent in range(location.num_extents)]
                    fills.append(self._fill(result, location, offsets))
            if any(result.status is ReserveStatus.FULL for result in results):
                return fills, False
        return fills, True

    def _fill(self, result: ReserveResult, location: NvmeLocation, offsets: list[int]) -> Fill:
        self._store.expect_checksums(
            FILL_OWNER, result.slot, result.generation, list(location.checksums)
        )
        return Fill(result.slot, result.generation, location, offsets)

    # -- string entries -----------------------------------------------------------------

    def holds(self, entries: Sequence[EntryId]) -> list[bool]:
        return self._nvme.holds(entries)

    def bring(self, request: EntriesWanted, then: Then) -> None:
        located = self._nvme.locate(request.entries)
        found = [location for location in located if location is not None]
        num_new = sum([location.entry not in self._waiting for location in found])
        self.misses += len(located) - len(found)
        self.hits += num_new - self._fill_entries(found)
        if found:
            self._fill_ahead_soon(self._read_ahead.brought(found))
        wanted = dict.fromkeys(request.entries)
        filling = [entry for entry in wanted if entry in self._waiting]
        if not filling:
            then()
            return
        _AllEnded(self._loop, len(filling), request.deadline - self._clock(), then).watch(
            [self._waiting[entry] for entry in filling]
        )

    def used(self, entries: Sequence[bytes]) -> None:
        """These were asked for, wherever they lay."""
        self._fill_ahead_soon(self._read_ahead.used(entries))

    def _fill_ahead_soon(self, found: Sequence[NvmeLocation]) -> None:
        """A few at a time, after the answer to whoever asks and the reads of what was asked for."""
        if found:
            self._loop.call_soon(self._fill_ahead, found)

    def _fill_ahead(self, found: Sequence[NvmeLocation]) -> None:
        self._fill_entries(found[:FILLED_AHEAD_AT_ONCE])
        self._fill_ahead_soon(found[FILLED_AHEAD_AT_ONCE:])

    def _fill_entries(self, found: Sequence[NvmeLocation]) -> int:
        """Begins to bring what is neither here nor on its way, as far as there is room; how many
        those are."""
        new = {
            EntryId(location.entry): location
            for location in found
            if location.num_extents == 1 and location.entry not in self._waiting
        }
        if not new:
            return 0
        results = self._store.reserve_entry_fill(
            FILL_OWNER,
            list(new),
            [location.length for location in new.values()],
            origin=ORIGIN,
            now=self._clock(),
        )
        fills = []
        for (entry, location), result in zip(new.items(), results, strict=True):
            if result.status is ReserveStatus.RESERVED:
                self._waiting[entry] = []
                fills.append(self._fill(result, location, [0]))
        if fills:
            self._loop.call_soon(self._promote, fills)
        return len(fills)

    # -- reading ------------------------------------------------------------------------

    def _promote(self, fills: list[Fill]) -> Promotion | None:
        if not fills:
            return None
        promotion = Promotion(
            self._store,
            self._nvme,
            fills,
            counters=self._counters,
            clock=self._clock,
            ended=self._fill_ended,
        )
        self._promotions.append(promotion)
        promotion.pump()
        return promotion

    def _fill_ended(self, fill: Fill, stored: bool) -> None:
        entry = fill.location.entry
        waiting = self._waiting.pop(entry, [])
        if waiting and not stored and self._fill_from_elsewhere(fill.location):
            self._waiting[entry] += waiting
            return
        self.hits += stored
        self.misses += not stored
        for callback in waiting:
            callback()

    def _fill_from_elsewhere(self, failed: NvmeLocation) -> int:
        """What has come to another place on disk while it was brought from there."""
        (found,) = self._nvme.locate([failed.entry])
        if found is None or (found.region, found.ordinal) == (failed.region, failed.ordinal):
            return 0
        return self._fill_entries([found])


class _AllEnded:
    """Calls `then` once: when `count` fills have ended, or after `seconds`."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, count: int, seconds: float, then: Then
    ) -> None:
        self._left = count
        self._then = then
        self._timer = loop.call_later(max(seconds, 0.0), self._finish)

    def watch(self, lists: Sequence[list[Callable[[], None]]]) -> None:
        for waiting in lists:
            waiting.append(self._one_ended)

    def _one_ended(self) -> None:
        self._left -= 1
        if not self._left:
            self._finish()

    def _finish(self) -> None:
        self._timer.cancel()
        then, self._then = self._then, _nothing
        then()


def _nothing() -> None:
    """`then` has run."""

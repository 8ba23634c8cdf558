"""What an operator asks of a store: which entries there are, why one is not, what an eviction
would take."""

from __future__ import annotations

import math
from collections.abc import Iterator
from urllib.parse import quote_from_bytes

from ..errors import InvalidRequest
from ..keys import BLOCK_KEY_BYTES, EntryId, block_key_of, is_block, shard_of
from ..slots import HEAD, LENGTH, WORDS, SlotState
from ..types import Tier
from .catalog import STRINGS
from .entries import TICKS_PER_SECOND, DropReason, Entries
from .namespaces import Namespaces
from .slot_table import NO_SLOT
from .types import EntryInfo, EntryPage, Evicted, EvictScope, Explanation

MAX_PAGE_ENTRIES = 1000
EVICTED_AT_ONCE = 4096
MAX_SCANNED_SLOTS = 100_000
"""Slots one page looks at: a rare match costs more pages, not a long stall."""
_BLOCK_ID_BYTES = 1 + BLOCK_KEY_BYTES


def key_text(entry: bytes) -> str:
    """`kv:HEX` of the block key, or `s:PERCENT-ENCODED`."""
    return (
        f"kv:{block_key_of(entry).hex()}" if is_block(entry) else f"s:{quote_from_bytes(entry[1:])}"
    )


class Eviction:
    """What an eviction `takes`. Nothing is dropped before `carry_out`."""

    def __init__(self, takes: Evicted, entries: Entries, slots: list[int]) -> None:
        words = entries.catalog.words
        self.takes = takes
        self._entries = entries
        self._chosen = [(slot, words[slot * WORDS + HEAD] >> 32) for slot in slots]

    def carry_out(self) -> Iterator[int]:
        """Drops them in parts of a few milliseconds, between which others may act: yields how many
        went. What was pinned or dropped meanwhile stays as it is."""
        for start in range(0, len(self._chosen), EVICTED_AT_ONCE):
            part = self._chosen[start : start + EVICTED_AT_ONCE]
            slots = [slot for slot, generation in part if self._may_go(slot, generation)]
            self._entries.drop(slots, DropReason.EVICTED)
            self._entries.counters.evictions += len(slots)
            yield len(slots)

    def _may_go(self, slot: int, generation: int) -> bool:
        catalog = self._entries.catalog
        return (
            catalog.find(slot, generation) is SlotState.COMMITTED
            and not catalog.pins[slot]
            and catalog.committed.get(catalog.keys[slot]) == slot
        )


class Inspection:
    def __init__(self, entries: Entries, namespaces: Namespaces) -> None:
        self._entries = entries
        self._catalog = entries.catalog
        self._namespaces = namespaces

    def page(
        self, *, namespace: bytes | None, key_prefix: bytes, limit: int, cursor: str, now: float
    ) -> EntryPage:
        if not 1 <= limit <= MAX_PAGE_ENTRIES:
            raise InvalidRequest(f"limit is {limit}; it must lie in 1..{MAX_PAGE_ENTRIES}")
        if cursor and not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 10):
            raise InvalidRequest(f"cursor {cursor[:40]!r} is not one this store gave")
        number = self._namespace_number(namespace)
        start = int(cursor or 1)
        stop = min(start + MAX_SCANNED_SLOTS, self._catalog.table.num_slots)
        infos: list[EntryInfo] = []
        for slot in range(start, stop):
            if self._is_committed(slot) and self._matches(slot, number, key_prefix):
                infos.append(self._info(slot, now))
                if len(infos) == limit:
                    return EntryPage(infos, str(slot + 1))
        return EntryPage(infos, str(stop) if stop < self._catalog.table.num_slots else "")

    def explain(self, entry: EntryId) -> Explanation:
        catalog, text = self._catalog, key_text(entry)
        slot = catalog.committed.get(entry)
        if slot is not None and catalog.is_retired(slot):
            return Explanation(text, "dropped", DropReason.INVALIDATED.value)
        if slot is not None:
            return Explanation(
                text, "committed", f"in dram, segment {self._entries.segment_of(slot)}"
            )
        if entry in catalog.pending:
            return Explanation(text, "reserved", "its writer has not committed it yet")
        filling = catalog.filling.get(entry)
        if filling is not None:
            origin = catalog.origins[filling]
            return Explanation(
                text, "reserved", f"it comes from {origin.tier} by {origin.transport}"
            )
        reason = self._entries.drops.get(entry)
        if reason is not None:
            return Explanation(text, "dropped", reason.value)
        return Explanation(text, "unknown", "never stored here, or dropped long ago")

    def plan_eviction(self, scope: EvictScope, now: float) -> Eviction:
        chosen = self._choose(scope, now)
        return Eviction(self._measure(chosen), self._entries, chosen)

    def _choose(self, scope: EvictScope, now: float) -> list[int]:
        """Unpinned committed slots in scope, coldest first, no more than `num_bytes` needs."""
        if scope.num_bytes is not None and scope.num_bytes < 0:
            raise InvalidRequest(f"num_bytes is {scope.num_bytes}; it must be at least 0")
        if scope.older_than_s is not None and not scope.older_than_s >= 0:
            raise InvalidRequest(f"older_than_s is {scope.older_than_s}; it must be at least 0")
        number = STRINGS if scope.strings_only else self._namespace_number(scope.namespace)
        least_idle = (scope.older_than_s or 0.0) * TICKS_PER_SECOND
        tick = self._entries.tick(now)
        missing = math.inf if scope.num_bytes is None else scope.num_bytes
        chosen: list[int] = []
        for slot in self._in_order(scope):
            if missing <= 0:
                break
            if self._catalog.pins[slot] or tick - self._catalog.touched[slot] < least_idle:
                continue
            if self._matches(slot, number, scope.key_prefix):
                chosen.append(slot)
                missing -= self._entries.occupied(slot)
        return chosen

    def _measure(self, slots: list[int]) -> Evicted:
        """A block's tokens count once, however many of its shards are among them."""
        blocks = {
            block_key_of(self._catalog.keys[slot]): self._catalog.namespaces[slot]
            for slot in slots
            if self._catalog.namespaces[slot] != STRINGS
        }
        tokens = sum(
            self._namespaces.get(number).namespace.block_tokens for number in blocks.values()
        )
        return Evicted(len(slots), sum(map(self._entries.occupied, slots)), tokens)

    def _in_order(self, scope: EvictScope) -> Iterator[int]:
        if scope.entries is None:
            pool = self._entries.pool
            for arena in [pool.daemon, *pool.arenas.values()]:
                yield from arena.policy
            return
        short = {entry for entry in scope.entries if len(entry) == _BLOCK_ID_BYTES}
        exact = [self._catalog.committed.get(entry, NO_SLOT) for entry in scope.entries]
        chosen = dict.fromkeys(slot for slot in exact if slot)
        if any(map(is_block, short)):
            for entry, slot in self._catalog.committed.items():
                if entry[:_BLOCK_ID_BYTES] in short and is_block(entry):
                    chosen[slot] = None
        yield from chosen

    def _namespace_number(self, digest: bytes | None) -> int | None:
        """None: any. A namespace never opened here has no number in use: -1."""
        if digest is None:
            return None
        if not digest:
            return STRINGS
        opened = self._namespaces.find(digest)
        return -1 if opened is None else opened.edition

    def _is_committed(self, slot: int) -> bool:
        """And still found under its key, of a living edition, and no request's own."""
        head = self._catalog.words[slot * WORDS + HEAD]
        if head & 0xFF != SlotState.COMMITTED or slot in self._catalog.request_scoped:
            return False
        if self._catalog.is_retired(slot):
            return False
        return self._catalog.committed.get(self._catalog.keys[slot]) == slot

    def _matches(self, slot: int, number: int | None, key_prefix: bytes) -> bool:
        if number is not None and self._catalog.namespaces[slot] != number:
            return False
        return bytes(self._catalog.keys[slot]).startswith(key_prefix, 1)

    def _info(self, slot: int, now: float) -> EntryInfo:
        catalog = self._catalog
        entry = catalog.keys[slot]
        idle = self._entries.tick(now) - catalog.touched[slot]
        return EntryInfo(
            key=key_text(entry),
            tier=Tier.DRAM,
            num_bytes=catalog.words[slot * WORDS + LENGTH],
            namespace=self._namespaces.hex_digest(catalog.namespaces[slot]),
            shard=shard_of(entry).hex() if is_block(entry) else "",
            pins=catalog.pins[slot],
            idle_s=max(idle, 0) / TICKS_PER_SECOND,
        )

"""What an operator asks of a store: which entries there are, why one is not, what an eviction
would take."""

from __future__ import annotations

from functools import partial
from urllib.parse import quote_from_bytes

import numpy as np

from ..errors import InvalidRequest
from ..keys import EntryId, block_key_of, is_block, shard_of
from ..slots import HEAD, LENGTH, WORDS, SlotState
from ..types import Tier
from .entries import TICKS_PER_SECOND, Entries
from .namespaces import Namespaces
from .scoped_eviction import Eviction
from .slot_table import NO_SLOT
from .types import EntryInfo, EntryPage, EvictScope, Explanation

MAX_PAGE_ENTRIES = 1000
MAX_SCANNED_SLOTS = 100_000
"""Slots one page looks at, by columns: a rare match costs more pages, not a long stall."""
MAX_COMPARED_KEYS = 1 << 13
"""Of a page."""


def key_text(entry: bytes) -> str:
    """`kv:HEX` of the block key, or `s:PERCENT-ENCODED`."""
    return (
        f"kv:{block_key_of(entry).hex()}" if is_block(entry) else f"s:{quote_from_bytes(entry[1:])}"
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
        slots = self._committed_slots(start, stop, number)
        for slot in slots[:MAX_COMPARED_KEYS]:
            if self._is_listed(slot, key_prefix):
                infos.append(self._info(slot, now))
                if len(infos) == limit:
                    return EntryPage(infos, str(slot + 1))
        if len(slots) > MAX_COMPARED_KEYS:
            stop = slots[MAX_COMPARED_KEYS]
        return EntryPage(infos, str(stop) if stop < self._catalog.table.num_slots else "")

    def info(self, entry: EntryId, now: float) -> EntryInfo | None:
        """As a page shows it; None: it is on none."""
        slot = self._catalog.committed.get(entry)
        return None if slot is None or not self._is_listed(slot, b"") else self._info(slot, now)

    def ids_of(self, block: EntryId) -> list[EntryId]:
        stored = dict.fromkeys(shard for each in self._namespaces for shard in each.stored)
        return [EntryId(block + shard) for shard in stored]

    def parent_of(self, entry: EntryId) -> bytes:
        catalog = self._catalog
        slot = catalog.committed.get(entry)
        parent = NO_SLOT if slot is None else catalog.chains.parent[slot]
        return b"" if parent == NO_SLOT else block_key_of(catalog.keys[parent])

    def explain(self, entry: EntryId) -> Explanation:
        """Of a block without its shard: what is known of the first shard of which anything is."""
        explained = self._explain(entry)
        if is_block(entry) and not shard_of(entry):
            shards = map(self._explain, self.ids_of(entry))
            explained = next((each for each in shards if each.state != "unknown"), explained)
        return explained

    def _explain(self, entry: EntryId) -> Explanation:
        catalog, text = self._catalog, key_text(entry)
        slot = catalog.committed.get(entry)
        retired = catalog.retired.get(catalog.namespaces[slot]) if slot is not None else None
        if retired is not None:
            return Explanation(text, "dropped", retired.reason.value)
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
        if scope.num_bytes is not None and scope.num_bytes < 0:
            raise InvalidRequest(f"num_bytes is {scope.num_bytes}; it must be at least 0")
        if scope.older_than_s is not None and not scope.older_than_s >= 0:
            raise InvalidRequest(f"older_than_s is {scope.older_than_s}; it must be at least 0")
        digest = b"" if scope.strings_only else scope.namespace
        edition = partial(self._namespace_number, digest)
        return Eviction(scope, self._entries, self._namespaces, edition=edition, now=now)

    def _namespace_number(self, digest: bytes | None) -> int | None:
        """None: any. A namespace never opened here has no number in use: -1."""
        if digest is None:
            return None
        if not digest:
            return self._catalog.strings
        opened = self._namespaces.find(digest)
        return -1 if opened is None else opened.edition

    def _committed_slots(self, start: int, stop: int, number: int | None) -> list[int]:
        committed = self._catalog.table.rows()[start:stop, HEAD] & 0xFF == SlotState.COMMITTED
        if number is not None:
            committed &= np.frombuffer(self._catalog.namespaces, np.uint16)[start:stop] == number
        found: list[int] = (np.flatnonzero(committed) + start).tolist()
        return found

    def _is_listed(self, slot: int, key_prefix: bytes) -> bool:
        """It is found under its key, of a living edition, and no request's own."""
        catalog = self._catalog
        entry = catalog.keys[slot]
        return (
            entry.startswith(key_prefix, 1)
            and slot not in catalog.request_scoped
            and not catalog.is_retired(slot)
            and catalog.committed.get(entry) == slot
        )

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

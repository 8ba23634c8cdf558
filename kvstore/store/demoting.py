"""The side of a store that faces a colder tier: what to copy there, and what lies there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from ..keys import block_key_of, is_block, shard_of
from ..layout import DTYPE_BYTES, Shard
from ..slots import HEAD, LENGTH, PLACE, WORDS, SlotState
from .catalog import DEAD, FLUSHED, RETIRED, VOLATILE
from .event_log import Holding
from .parts import StoreParts

MAX_COLDEST = 1 << 15
"""Entries of an arena that are looked at for being cold and not copied: milliseconds' work."""


class Demotable(NamedTuple):
    """A committed entry that a colder tier does not hold. `parent` is the block key before it."""

    slot: int
    generation: int
    parent: bytes


class Held(NamedTuple):
    """An entry whose bytes stay until `Store.release(slot)`."""

    entry: bytes
    namespace: str  # digest, hex; "" for string entries
    extents: list[memoryview]
    checksums: list[int]
    element_bytes: int  # size of the numbers in it


class StoreDemoting(StoreParts):
    """Committed entries are offered once, as they become visible; `unflushed` finds those that were
    not taken then."""

    def on_committed(self, callback: Callable[[list[Demotable]], None]) -> None:
        """Called within each commit; the callback may not change the store."""
        catalog = self._catalog

        def offer(slots: Sequence[int], parents: Mapping[bytes, bytes]) -> None:
            flags, keys = catalog.flags, catalog.keys
            offered = [
                Demotable(
                    slot,
                    catalog.generation(slot),
                    parents.get(block_key_of(keys[slot]), b"") if parents else b"",
                )
                for slot in slots
                if not flags[slot] & (VOLATILE | FLUSHED)
            ]
            if offered:
                callback(offered)

        self._entries.on_committed = offer

    @property
    def num_entries(self) -> int:
        """Committed ones."""
        return len(self._catalog.committed)

    def holds(self, entry: bytes) -> bool:
        """Whether it is committed here. Any thread."""
        return entry in self._catalog.committed

    def unflushed(self, limit: int) -> list[Demotable]:
        """The coldest entries that no colder tier held yet, coldest first. Looks at every slot, by
        columns: milliseconds for a million."""
        catalog = self._catalog
        states = catalog.table.rows()[:, HEAD] & 0xFF
        flags = np.frombuffer(catalog.flags, np.uint8)
        unwanted = flags & (DEAD | VOLATILE | FLUSHED | RETIRED)
        wanted = (states == SlotState.COMMITTED) & (unwanted == 0)
        slots = np.flatnonzero(wanted)
        touched = np.frombuffer(catalog.touched, np.uint32)[slots]
        order = np.argsort(touched, kind="stable")[:limit]
        return [
            Demotable(slot, catalog.generation(slot), self._parent_key(slot))
            for slot in slots[order].tolist()
        ]

    def unflushed_of_coldest(self, ratio: float, limit: int) -> list[Demotable]:
        """Of what each arena would evict first, those that no colder tier holds, also if it did
        once: up to this share of its bytes, and to what has idled as long as that of the largest
        arena; coldest first. Looks at MAX_COLDEST entries of each. Then those of segments that are
        to be emptied."""
        catalog, pool = self._catalog, self._pool
        flags, words, idle = catalog.flags, catalog.words, catalog.links.idle
        used = dict.fromkeys(pool.all_arenas(), 0)
        for segment in pool.segments:
            if segment.arena is not None:
                used[segment.arena] += segment.allocator.used_bytes
        found: list[int] = []
        longest = 0
        for arena in sorted(used, key=used.__getitem__, reverse=True):
            left = ratio * used[arena]
            for slot in islice(arena.policy, MAX_COLDEST):
                if left <= 0 and idle(slot) <= longest:
                    break
                if not flags[slot] & (VOLATILE | FLUSHED):
                    found.append(slot)
                left -= words[slot * WORDS + LENGTH]
                if left <= 0:
                    longest = longest or idle(slot)
        found += self._unflushed_of_segments(self._placement.spared)
        return [
            Demotable(slot, catalog.generation(slot), self._parent_key(slot))
            for slot in found[:limit]
        ]

    def _unflushed_of_segments(self, segments: Collection[int]) -> list[int]:
        if not segments:
            return []
        rows = self._catalog.table.rows()
        flags = np.frombuffer(self._catalog.flags, np.uint8)
        committed = rows[:, HEAD] & 0xFF == SlotState.COMMITTED
        wanted = committed & (flags & (DEAD | VOLATILE | FLUSHED) == 0)
        slots = np.flatnonzero(wanted)
        inside: list[int] = slots[np.isin(rows[slots, PLACE] >> 32, list(segments))].tolist()
        return inside

    def hold(self, slot: int, generation: int) -> Held | None:
        """Keeps the entry's bytes for a copy, without counting as use. None when there is nothing
        to do: it is gone, lies on the colder tier already, or is held."""
        catalog = self._catalog
        if (
            catalog.find(slot, generation) is not SlotState.COMMITTED
            or catalog.flags[slot] & (DEAD | VOLATILE | FLUSHED)
            or catalog.is_retired(slot)
            or slot in self._entries.held
        ):
            return None
        entry, number = catalog.entry(slot), catalog.namespaces[slot]
        data = self._contents.buffer(slot, generation)
        self._entries.hold(slot)
        if not is_block(entry):
            return Held(entry, "", [data], [self._contents.checksum(slot, 0)], 1)
        extents = self._contents.extents(slot, generation)
        return Held(
            entry,
            self._namespaces.hex_digest(number),
            [data[offset : offset + length] for offset, length, _ in extents],
            [extent.checksum for extent in extents],
            self._element_bytes(number, shard_of(entry)),
        )

    def release(self, slot: int) -> None:
        """The copy is over. The entry may have been dropped meanwhile; then its space is free."""
        self._entries.release(slot)

    def mark_flushed(self, slot: int, generation: int) -> None:
        """The colder tier holds this entry now. Nothing happens when it has gone from here."""
        if self._catalog.find(slot, generation) is SlotState.COMMITTED:
            self._entries.set_flag(slot, FLUSHED)

    def keep_unflushed(self) -> None:
        """From now on what no colder tier holds is not evicted, what ends by itself and what that
        tier does not take (`give_up`) aside: a full pool refuses puts until it is copied."""
        self._entries.evictable_flags = VOLATILE | FLUSHED | RETIRED

    def spare_unflushed_segments(self) -> None:
        """From now on a segment is emptied for another writer once a colder tier holds all of it
        (`unflushed_of_coldest` tells what it lacks), or half a minute later: what is evicted one by
        one is cold, what goes with its segment may be what was stored last."""
        self._placement.copied_flags = VOLATILE | FLUSHED

    def give_up(self, slot: int, generation: int) -> None:
        """The colder tier can never take this entry."""
        if self._catalog.find(slot, generation) is SlotState.COMMITTED:
            self._entries.set_flag(slot, RETIRED)

    def forget_flushed(self, entries: Iterable[bytes]) -> None:
        """The colder tier no longer holds these. They are not copied there again before
        `reoffer_retired`: a tier smaller than this one would be written without end."""
        catalog = self._catalog
        for entry in entries:
            slot = catalog.committed.get(entry)
            if slot is not None and catalog.flags[slot] & FLUSHED:
                catalog.flags[slot] ^= FLUSHED | RETIRED

    def forget_all_flushed(self) -> None:
        """The colder tier was emptied. As `forget_flushed` of each."""
        flags = np.frombuffer(self._catalog.flags, np.uint8)
        flags[flags & FLUSHED != 0] ^= FLUSHED | RETIRED

    def reoffer_retired(self) -> None:
        """What left the colder tier may go there again."""
        flags = np.frombuffer(self._catalog.flags, np.uint8)
        flags &= ~np.uint8(RETIRED)

    def list_beyond(self, holdings: Callable[[], Iterable[Holding]]) -> None:
        """Snapshots of events end with these, which lie in a tier that this class does not own;
        they are read as the snapshot is."""
        self._beyond = holdings

    def _parent_key(self, slot: int) -> bytes:
        parent = self._catalog.chains.parent[slot]
        return block_key_of(self._catalog.keys[parent]) if parent else b""

    def _element_bytes(self, namespace: int, packed: bytes) -> int:
        layout = self._namespaces.get(namespace).namespace.layout
        return DTYPE_BYTES[layout.groups[Shard.unpack(packed).group].dtype]

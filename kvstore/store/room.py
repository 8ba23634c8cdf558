"""Room for a reservation: what is asked for, where it goes, and the slot's columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..slots import CHECKSUM, LENGTH, OFFSET, PLACE, WORDS, SlotState
from ..types import IfExists
from .allocator import occupied_bytes
from .catalog import REQUEST_SCOPED, SOFT_PINNED, STRINGS, VOLATILE, Catalog
from .entries import Entries
from .owners import Owner
from .placement import Place, Placement
from .pool import Arena
from .slot_table import NO_SLOT
from .types import Origin


@dataclass(slots=True, eq=False)
class Batch:
    """What the reservations of one call share. One with an `origin` is a fill."""

    owner: Owner
    namespace: int = STRINGS
    if_exists: IfExists = "keep"
    ttl_s: float | None = None  # from the commit
    ends_at: float | None = None  # monotonic seconds; instead of a time to live
    soft_pin: bool = False
    shared_memory: bool = False
    parents: dict[bytes, bytes] = field(default_factory=dict)  # block key → the one before it
    request_scoped: bool = False
    origin: Origin | None = None
    elsewhere: Collection[bytes] = ()  # entries that another tier holds
    replicas: int = 1  # wanted in the cluster
    near_cap: bool = False  # of a tenant whose cap leaves less than a segment

    def end(self, now: float) -> float | None:
        """When entries committed at `now` end by themselves, if they do."""
        return self.ends_at if self.ttl_s is None else now + self.ttl_s


class Wanted(NamedTuple):
    entry: bytes
    num_bytes: int
    num_extents: int


class Space(NamedTuple):
    slot: int
    segment: int
    offset: int


class Room:
    """Evicts what the placement chooses."""

    def __init__(self, entries: Entries, placement: Placement) -> None:
        self._catalog: Catalog = entries.catalog
        self._pool = entries.pool
        self._placement = placement

    def take(self, writers: Sequence[Arena], num_bytes: int, now: float) -> Space | None:
        """In the first arena that has free memory, else where something can be evicted for it.
        None: nowhere."""
        placement = self._placement
        for writer in writers:
            place = placement.find_free(writer, num_bytes)
            if place is not None:
                if writer is not writers[0]:
                    placement.ask_colder(writers[0], now)
                return self._with_slot(place, num_bytes, self._catalog.take_slot)
        for writer in writers:
            if writer is self._pool.daemon:
                place = placement.make_room_for_daemon(writers, num_bytes, now)
            else:
                place = placement.make_room(writer, num_bytes, now)
            if place is not None:
                return self._with_slot(place, num_bytes, self._catalog.take_slot)
        return None

    def take_for_copy(self, num_bytes: int, now: float) -> Space | None:
        """For what lies elsewhere, too: in the segments of all writers, so that all of the tier is
        one order of eviction to it."""
        place = self._place_for_daemon(self._pool.all_arenas(), num_bytes, now)
        return place and self._with_slot(place, num_bytes, self._catalog.take_slot)

    def take_daemon_run(self, num_bytes: int, now: float) -> Space | None:
        """For a run that the daemon writes, in its own segments."""
        place = self._place_for_daemon([self._pool.daemon], num_bytes, now)
        return place and self._with_slot(place, num_bytes, self._catalog.take_slot_for_run)

    def _place_for_daemon(
        self, arenas: Sequence[Arena], num_bytes: int, now: float
    ) -> Place | None:
        placement = self._placement
        return placement.find_free(self._pool.daemon, num_bytes) or placement.make_room_for_daemon(
            arenas, num_bytes, now
        )

    def take_little(self, writers: Sequence[Arena], num_bytes: int, now: float) -> Space | None:
        """As `take`, but where others would lose a whole segment for it, the daemon's coldest
        entries go."""
        for writer in writers:
            place = writer.allocate(num_bytes)
            if place is not None:
                return self._with_slot(place, num_bytes, self._catalog.take_slot)
        daemon, placement = self._pool.daemon, self._placement
        place = placement.find_free(daemon, num_bytes) or placement.replace(daemon, num_bytes, now)
        if place is None:
            return self.take(writers, num_bytes, now)
        return self._with_slot(place, num_bytes, self._catalog.take_slot)

    def take_granted(self, arena: Arena, num_bytes: int, now: float) -> Space | None:
        """For a run: only in the client's arena. None, too, while the daemon's has free memory: the
        next entries go there."""
        placement = self._placement
        place = placement.find_free(arena, num_bytes)
        if place is None:
            placement.ask_colder(arena, now)
            if placement.has_free(self._pool.daemon, num_bytes):
                return None
            place = placement.make_room(arena, num_bytes, now)
        if place is None:
            return None
        return self._with_slot(place, num_bytes, self._catalog.take_slot_for_run)

    def _with_slot(
        self, place: Place, num_bytes: int, take_slot: Callable[[], int]
    ) -> Space | None:
        slot = take_slot()
        if slot == NO_SLOT and self._placement.free_slot():
            slot = take_slot()
        if slot == NO_SLOT:
            self._pool.release_extent(*place, occupied_bytes(num_bytes))
            return None
        return Space(slot, *place)

    def enter(self, batch: Batch, wanted: Wanted, space: Space, now: float) -> int:
        """Fills the slot's columns; its generation."""
        catalog, slot = self._catalog, space.slot
        words, position = catalog.words, slot * WORDS
        generation = words[position] >> 32
        words[position + PLACE] = space.segment << 32 | wanted.num_extents
        words[position + OFFSET] = space.offset
        words[position + LENGTH] = wanted.num_bytes
        words[position + CHECKSUM] = 0
        words[position] = generation << 32 | SlotState.RESERVED
        catalog.keys[slot] = wanted.entry
        catalog.namespaces[slot] = batch.namespace or catalog.strings
        if batch.soft_pin:
            catalog.flags[slot] = SOFT_PINNED
        if wanted.num_extents > 1:
            catalog.checksums[slot] = bytearray(8 * wanted.num_extents)
        if batch.end(now) is not None:
            catalog.flags[slot] |= VOLATILE
        if batch.request_scoped:
            catalog.flags[slot] |= REQUEST_SCOPED
            catalog.request_scoped.add(slot)
        if batch.origin is not None:
            catalog.filling[wanted.entry] = slot
            catalog.origins[slot] = batch.origin
        elif batch.namespace != STRINGS:
            catalog.pending.setdefault(wanted.entry, slot)
        return generation

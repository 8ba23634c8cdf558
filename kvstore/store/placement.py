"""Room for a new extent, and what has to go for it.

In this order: the writer's own segments; for the daemon, what gone clients left free of theirs; a
free segment; the coldest segment of another writer when that is colder than its own coldest entry
(a live client's is asked back, not taken; where a colder tier gets entries late, one that it has
whole first); its own coldest entries, one by one; the cheapest window of its entries.

The daemon itself may write everywhere. What it brings from elsewhere goes where the coldest entry
of all was: so the tier stays one order of eviction, and segments hardly change hands.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from heapq import merge, nsmallest
from itertools import islice
from operator import itemgetter

import numpy as np

from ..slots import HEAD, PLACE
from .allocator import occupied_bytes
from .catalog import FLUSHED, Catalog
from .entries import Entries
from .pool import Arena, Holder, Pool, PoolSegment
from .slot_table import NO_SLOT
from .types import Revocation
from .window import Windows

SURVEY_SECONDS = 1.0
"""How old the picture of other writers' segments may be."""
MAX_SURVEYED = 512
"""The coldest so many segments are in that picture: each request may go through it."""
ASK_AGAIN_SECONDS = 2.0
SPARED_SECONDS = 30.0
"""So long a segment waits for a copy of what lies nowhere else in it, while it is the coldest."""
MAX_SPARED = 4
"""Segments that wait so at a time: a colder tier has to hold twice what they hold."""
MAX_DESCENT = 4096
MAX_EQUALS = 8
MAX_GUARDED = 64
"""Guarded entries passed over for one victim."""
MAX_SCATTERED_VICTIMS = 32
"""Entries evicted in policy order for one request before a window is looked for."""
MAX_VICTIMS = 1 << 17
"""Most entries evicted for one request, a fraction of a second's work. One that needs more is
refused and finds less in its way when it is tried again."""

Place = tuple[int, int]
"""(segment index, offset)"""


class Placement:
    """Evictions it decides are carried out by `Entries` at once and announced by its caller."""

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._catalog: Catalog = entries.catalog
        self._pool: Pool = entries.pool
        self._windows = Windows(entries.catalog, entries.pool)
        self._survey: list[tuple[float, int]] = []  # (mean touched tick, segment), coldest first
        self._surveyed_at = -math.inf
        self._uncopied: set[int] = set()  # of that picture, where some entry is nowhere else
        self._asked: dict[
            int, float
        ] = {}  # segments whose return was asked for → when to ask again
        self._refused: tuple[Arena | None, float, int] = (None, 0.0, 0)
        self.copied_flags = 0
        """Of which an entry needs one before its whole segment should go; 0: none."""
        self._spared_until: dict[int, float] = {}  # segments with an entry that has none

    def find_free(self, arena: Arena, num_bytes: int) -> Place | None:
        """Without evicting."""
        place = arena.allocate(num_bytes)
        if place is None and arena.client is None:
            place = self._pool.allocate_orphaned(num_bytes)
        if place is None and self._pool.attach_free(arena):
            place = arena.allocate(num_bytes)
        return place

    def has_free(self, arena: Arena, num_bytes: int) -> bool:
        """Whether `find_free` would find something."""
        place = self.find_free(arena, num_bytes)
        if place is not None:
            self._pool.release_extent(*place, occupied_bytes(num_bytes))
        return place is not None

    def make_room(self, arena: Arena, num_bytes: int, now: float) -> Place | None:
        """Where there is nothing free: evicts. None when pins, reservations or other writers leave
        no room."""
        if self._take_segment(arena, now):
            return arena.allocate(num_bytes)
        return self.replace(arena, num_bytes, now)

    def replace(self, arena: Arena, num_bytes: int, now: float) -> Place | None:
        """As `make_room`, among the arena's own entries."""
        place = self._evict_coldest(arena, num_bytes, heir=arena)
        if place is None:
            place = self._evict_window(arena, num_bytes, now)
        return place

    def make_room_for_daemon(
        self, arenas: Sequence[Arena], num_bytes: int, now: float
    ) -> Place | None:
        """As `make_room`, for what the daemon writes itself: in whichever of these arenas the
        coldest entry lies, or in its own."""
        daemon = self._pool.daemon
        arena = self._coldest_of(arenas)
        if arena is not None and arena is not daemon:
            place = self._evict_coldest(arena, num_bytes, heir=daemon)
            if place is not None:
                return place
        return self.make_room(daemon, num_bytes, now)

    def free_slot(self) -> bool:
        """Evicts the coldest entry of all, for its slot. False when none can go."""
        arena = self._coldest_of(self._pool.all_arenas())
        if arena is None:
            return False
        self._entries.evict([self._victim(arena)])
        return True

    def free_slots(self, count: int) -> int:
        """Evicts the coldest entries of all, for their slots, at most `count`. How many went."""
        orders = []
        for arena in self._pool.all_arenas():
            slots = list(islice(arena.policy, count))
            worth = arena.policy.worth(np.array(slots, np.int64))
            orders.append(zip(worth.tolist(), slots, strict=True))
        coldest = merge(*orders, key=itemgetter(0))
        victims = [slot for _, slot in islice(coldest, count) if not self._catalog.is_guarded(slot)]
        self._entries.evict(victims)
        return len(victims)

    @property
    def spared(self) -> Collection[int]:
        """Segments that would have been emptied, had a colder tier got all that lies in them."""
        return self._spared_until.keys()

    def returned(self, segment: int) -> None:
        """A segment that may have been asked for is no longer granted."""
        self._asked.pop(segment, None)
        self._surveyed_at = -math.inf

    def take_revocations(self, now: float) -> list[Revocation]:
        """What to ask for now; again every ASK_AGAIN_SECONDS, since a client may reconnect."""
        due = [index for index, at in self._asked.items() if at <= now]
        revocations = []
        for index in due:
            self._asked[index] = now + ASK_AGAIN_SECONDS
            arena = self._pool.segments[index].arena
            if arena is not None and arena.client is not None:
                revocations.append(Revocation(arena.client, index))
        return revocations

    # -- whole segments -----------------------------------------------------------------

    def ask_colder(self, arena: Arena, now: float) -> None:
        """For a segment each, of the clients that have colder ones."""
        for segment in self._colder(arena, now):
            if segment.holder is Holder.GRANTED:
                self._ask_back(segment)

    def _take_segment(self, arena: Arena, now: float) -> bool:
        """Empties the coldest segment of another writer if that costs less than evicting here."""
        for segment in self._colder(arena, now):
            if segment.holder is Holder.GRANTED:
                self._ask_back(segment)
            elif self._may_empty(segment, arena) and self._empty(segment, now):
                return self._pool.attach_free(arena)
        return False

    def _colder(self, arena: Arena, now: float) -> Iterator[PoolSegment]:
        """Segments that others fill, colder than all that the arena holds, coldest first."""
        pool = self._pool
        if len(arena.segments) + len(pool.free) == len(pool.segments):
            return
        own = arena.policy.coldest()
        own_tick = self._catalog.touched[own] if own else math.inf
        for tick, index in self._foreign_segments(now):
            if tick >= own_tick:
                return
            segment = pool.segments[index]
            own_granted = segment.holder is Holder.GRANTED and segment.arena is arena
            if not own_granted and not (index in self._uncopied and self._is_spared(index, now)):
                yield segment

    def _is_spared(self, index: int, now: float) -> bool:
        """What goes with its segment may be what was stored last. The coldest few are copied first;
        the others wait for their turn."""
        waiting = sum(now < until for until in self._spared_until.values())
        if index not in self._spared_until and waiting >= MAX_SPARED:
            return True
        return now < self._spared_until.setdefault(index, now + SPARED_SECONDS)

    def _may_empty(self, segment: PoolSegment, arena: Arena) -> bool:
        if segment.holder is Holder.ORPHANED:
            return arena.client is None or self._pool.may_grant(1)
        return (
            segment.holder is Holder.DAEMON and arena.client is not None and self._pool.may_grant()
        )

    def _ask_back(self, segment: PoolSegment) -> None:
        """At most one segment of a client at a time."""
        arena = segment.arena
        if all(self._pool.segments[index].arena is not arena for index in self._asked):
            self._asked[segment.index] = -math.inf
            segment.asked = True

    def _empty(self, segment: PoolSegment, now: float) -> bool:
        """Evicts all of a segment, if nothing in it is held or to be copied first."""
        index, extents = segment.index, self._windows.extents(segment)
        flags = np.frombuffer(self._catalog.flags, np.uint8)[extents.slots]
        is_copied = not self.copied_flags or bool((flags & self.copied_flags).all())
        if extents.held.any() or (not is_copied and self._is_spared(index, now)):
            # since the picture was made: not tried again before the next
            self._survey = [place for place in self._survey if place[1] != index]
            return False
        self._spared_until.pop(segment.index, None)
        self._entries.evict(extents.slots[:MAX_VICTIMS].tolist())
        return segment.holder is Holder.FREE

    def _foreign_segments(self, now: float) -> list[tuple[float, int]]:
        """(mean touched tick, index) of segments in use that hold nothing held, coldest first; at
        most SURVEY_SECONDS old. Empty ones count as coldest."""
        if now - self._surveyed_at < SURVEY_SECONDS:
            return self._survey
        count = len(self._pool.segments)
        rows = self._catalog.table.rows()
        live = np.flatnonzero(rows[:, HEAD] & 0xFF)
        segments = (rows[live, PLACE] >> 32).astype(np.int64)
        touched = np.frombuffer(self._catalog.touched, np.uint32)[live]
        entries = np.bincount(segments, minlength=count)
        held = np.bincount(segments, weights=self._windows.held(live), minlength=count)
        if self.copied_flags:
            flags = np.frombuffer(self._catalog.flags, np.uint8)[live]
            uncopied = np.bincount(segments[flags & self.copied_flags == 0])
            self._uncopied = set(np.flatnonzero(uncopied).tolist())
            for index in self._spared_until.keys() - self._uncopied:
                del self._spared_until[index]
        sums = np.bincount(segments, weights=touched, minlength=count)
        means = np.where(entries > 0, sums / np.maximum(entries, 1), -1.0)
        self._survey = nsmallest(
            MAX_SURVEYED,
            (
                (float(means[segment.index]), segment.index)
                for segment in self._pool.segments
                if segment.holder is not Holder.FREE and not held[segment.index]
            ),
        )
        self._surveyed_at = now
        return self._survey

    def _coldest_of(self, arenas: Iterable[Arena]) -> Arena | None:
        """Whose next victim is worth least."""
        coldest = [(arena, slot) for arena in arenas if (slot := self._first(arena))]
        if len(coldest) > 1:
            coldest.sort(key=lambda place: place[0].policy.worth(np.array([place[1]]))[0])
        return coldest[0][0] if coldest else None

    # -- single entries -----------------------------------------------------------------

    def _victim(self, arena: Arena) -> int:
        """The coldest entry, or the end of the chain that hangs on it: a chain shrinks from its
        end. NO_SLOT when nothing can go."""
        chains, queue = self._catalog.chains, self._catalog.links.queue
        slot = self._coldest(arena)
        if slot == NO_SLOT:
            return NO_SLOT
        for _ in range(MAX_DESCENT):
            for child in chains.children(slot):
                if queue[child] and self._entries.arena_of(child) is arena:
                    slot = child
                    break
            else:
                break
        return slot

    def _coldest(self, arena: Arena) -> int:
        """Of a few that were last used in the same tenth of a second, one that lies on the NVMe
        tier too goes first; otherwise the policy's order alone decides."""
        flags, touched = self._catalog.flags, self._catalog.touched
        slot = first = self._first(arena)
        for _ in range(MAX_EQUALS):
            if slot == NO_SLOT or touched[slot] != touched[first]:
                break
            if flags[slot] & FLUSHED and not self._catalog.is_guarded(slot):
                return slot
            slot = self._catalog.links.hotter[slot]
        return first

    def _first(self, arena: Arena) -> int:
        """The coldest that others' writes may evict; where many colder ones are guarded, a window
        is looked for instead."""
        if not self._catalog.guarded:
            return arena.policy.coldest()
        looked_at = islice(arena.policy, MAX_GUARDED)
        return next((slot for slot in looked_at if not self._catalog.is_guarded(slot)), NO_SLOT)

    def _evict_coldest(self, arena: Arena, num_bytes: int, *, heir: Arena) -> Place | None:
        """Evicts of an arena no more bytes than are asked for, unless one victim makes room alone:
        scattered ones may never make a fit, and surely not a few that are much smaller. `heir` gets
        a segment that becomes empty."""
        wanted = missing = occupied_bytes(num_bytes)
        for _ in range(MAX_SCATTERED_VICTIMS):
            victim = self._victim(arena)
            if victim == NO_SLOT:
                return None
            taken = self._entries.occupied(victim)
            if taken < wanted and not missing >= taken >= wanted // MAX_SCATTERED_VICTIMS:
                return None
            missing -= taken
            segment = self._pool.segments[self._entries.segment_of(victim)]
            self._entries.evict([victim])
            place = self._place_in(segment, num_bytes, heir=heir)
            if place is not None:
                return place
        return None

    def _place_in(self, segment: PoolSegment, num_bytes: int, *, heir: Arena) -> Place | None:
        if segment.holder is Holder.FREE:  # it held only what was evicted
            return heir.allocate(num_bytes) if self._pool.attach_free(heir) else None
        is_orphan = segment.holder is Holder.ORPHANED
        if is_orphan and (heir.client is not None or not segment.is_abandoned):
            return None
        offset = segment.allocate(num_bytes)
        return None if offset is None else (segment.index, offset)

    # -- windows ------------------------------------------------------------------------

    def _evict_window(self, arena: Arena, num_bytes: int, now: float) -> Place | None:
        refused_arena, refused_at, refused_bytes = self._refused
        if refused_arena is arena and refused_at == now and num_bytes >= refused_bytes:
            return None
        found = self._windows.cheapest(arena, num_bytes)
        if found is not None:
            segment, window = found
            self._entries.evict(window.slots[:MAX_VICTIMS])
            if len(window.slots) <= MAX_VICTIMS:
                return self._place_in(segment, num_bytes, heir=arena)
        self._refused = (arena, now, num_bytes)
        return None

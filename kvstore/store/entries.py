"""Life and end of entries: what happens to catalog, pool, eviction order, events and accounts when
one becomes visible, is pinned, used, or dropped.

   reserved ──commit──► committed ──drop──► space free
                            └──drop while pinned──► dead ──last unpin──► space free
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..keys import block_key_of, is_block, shard_of
from ..slots import CHECKSUM, EXPIRES, HEAD, LENGTH, OFFSET, PLACE, WORDS, SlotState, pack_head
from .announcing import EntryEvents
from .catalog import DEAD, FLUSHED, REQUEST_SCOPED, SOFT_PINNED, STRINGS, VOLATILE, Catalog
from .counters import Counters
from .ends import DropReason
from .event_log import EventLog
from .eviction import OUT, Slots
from .expiry import Expiry
from .pool import Arena, Pool
from .slot_table import NO_SLOT

REMEMBERED_DROPS = 4096
MAX_EXPIRED_AT_ONCE = 1 << 12
LEAST_BULK = 256
"""Entries that end together from which on they are freed by columns."""
WORTH_A_SCAN = 1 << 14
"""Extents of a segment that end together, more than which cost more than a look at every slot."""
MAX_ANCESTORS = 4096
TICKS_PER_SECOND = 10


CommitCallback = Callable[[Sequence[int], Mapping[bytes, bytes]], None]
"""Slots that became visible, and the block key before each block's."""


class Entries(EntryEvents):
    """Owns no memory: works on the catalog and pool it is given."""

    def __init__(
        self,
        catalog: Catalog,
        pool: Pool,
        events: EventLog,
        counters: Counters,
        *,
        instance: str,
        namespace_digest: Callable[[int], str],
        started: float,
    ) -> None:
        super().__init__(catalog, events, instance=instance, namespace_digest=namespace_digest)
        self.pool = pool
        self.counters = counters
        self._started = started
        self.drops: OrderedDict[bytes, DropReason] = OrderedDict()
        self.expiry: Expiry[int] = Expiry()  # of committed slots
        self.held: set[int] = set()  # being copied to another tier
        self.on_committed: CommitCallback | None = None
        self.evictable_flags = 0  # only what has one of these is evicted; 0: everything

    # -- places -----------------------------------------------------------------------

    def segment_of(self, slot: int) -> int:
        return self.catalog.words[slot * WORDS + PLACE] >> 32

    def occupied(self, slot: int) -> int:
        return self.catalog.occupied(slot)

    def arena_of(self, slot: int) -> Arena:
        arena = self.pool.segments[self.segment_of(slot)].arena
        assert arena is not None, f"slot {slot} lies in a free segment"
        return arena

    def tick(self, now: float) -> int:
        """`now` in tenths of a second since the store began: the unit of the touched column."""
        return max(int((now - self._started) * TICKS_PER_SECOND), 0)

    # -- becoming visible -------------------------------------------------------------

    def publish(self, slots: Sequence[int], parents: dict[bytes, bytes], now: float) -> None:
        """Slots whose keys the catalog already points to are committed, all of one namespace and,
        if blocks, first block first; `parents` names the block key before each block."""
        catalog, tick = self.catalog, self.tick(now)
        words, touched, flags = catalog.words, catalog.touched, catalog.flags
        num_bytes = 0
        for slot in slots:
            position = slot * WORDS
            ends = EXPIRES if flags[slot] & VOLATILE else 0
            words[position] = words[position] & ~0xFF | ends | SlotState.COMMITTED
            touched[slot] = tick
            num_bytes += words[position + LENGTH]
        self.counters.bytes_in += num_bytes
        keys = [catalog.keys[slot] for slot in slots]
        namespace = catalog.namespaces[slots[0]]
        if not is_block(keys[0]):
            self._make_evictable(slots)
            self.announce("stored", STRINGS, keys)
        elif catalog.flags[slots[0]] & REQUEST_SCOPED:
            self._make_evictable(slots)
        else:
            followed = self._link(slots, parents)
            self._make_evictable(reversed(slots))
            self._refresh(followed, tick)
            self._announce_chain(namespace, keys, parents)
        if self.on_committed is not None:
            self.on_committed(slots, parents)

    def publish_few(
        self,
        slots: Sequence[int],
        keys: Sequence[bytes],
        segment: int,
        places: Sequence[tuple[int, int, int]],
        *,
        flags: int,
        now: float,
    ) -> list[int]:
        """Free slots become string entries, all different and new, of that (offset, size, checksum)
        in the segment. Their generations."""
        catalog, tick, place = self.catalog, self.tick(now), segment << 32 | 1
        words, names, committed = catalog.words, catalog.keys, catalog.committed
        namespaces, flagged, touched = catalog.namespaces, catalog.flags, catalog.touched
        head, edition = _new_head(flags), catalog.strings
        generations = []
        for slot, key, (offset, size, checksum) in zip(slots, keys, places, strict=True):
            position = slot * WORDS
            generation = words[position] >> 32
            words[position + PLACE] = place
            words[position + OFFSET] = offset
            words[position + LENGTH] = size
            words[position + CHECKSUM] = checksum
            words[position] = generation << 32 | head
            names[slot] = key
            namespaces[slot] = edition
            flagged[slot] = flags
            touched[slot] = tick
            committed[key] = slot
            generations.append(generation)
        self._tell_published(slots, slots, keys, sum([size for _, size, _ in places]), flags)
        return generations

    def publish_columns(
        self,
        slots: NDArray[np.int64],
        keys: Sequence[bytes],
        segment: int,
        places: Sequence[NDArray[Any]],
        *,
        flags: int,
        now: float,
    ) -> NDArray[np.uint64]:
        """As `publish_few`; `places` are columns."""
        catalog, rows, numbers = self.catalog, self.catalog.table.rows(), slots.tolist()
        generations: NDArray[np.uint64] = rows[slots, HEAD] >> 32
        rows[slots, PLACE] = segment << 32 | 1
        for word, values in zip((OFFSET, LENGTH, CHECKSUM), places, strict=True):
            rows[slots, word] = values
        rows[slots, HEAD] = generations << 32 | np.uint64(_new_head(flags))
        catalog.keys[slots] = keys
        np.frombuffer(catalog.namespaces, np.uint16)[slots] = catalog.strings
        np.frombuffer(catalog.flags, np.uint8)[slots] = flags
        np.frombuffer(catalog.touched, np.uint32)[slots] = self.tick(now)
        catalog.committed.update(zip(keys, numbers, strict=True))
        self._tell_published(slots, numbers, keys, int(places[1].sum()), flags)
        return generations

    def _tell_published(
        self,
        slots: Slots,
        numbers: Sequence[int],
        keys: Sequence[bytes],
        num_bytes: int,
        flags: int,
    ) -> None:
        self.counters.bytes_in += num_bytes
        if not numbers:
            return
        if flags & SOFT_PINNED or self.evictable_flags:
            self._make_evictable(numbers)
        else:  # all of one segment
            self.arena_of(numbers[0]).policy.insert_many(slots)
        self.announce("stored", STRINGS, keys)
        if self.on_committed is not None:
            self.on_committed(numbers, {})

    def _link(self, slots: Sequence[int], parents: dict[bytes, bytes]) -> list[int]:
        """Hangs blocks on the ones before them. Returns those of the latter that were here, and
        their ancestors: they are to stay as long as what follows them."""
        catalog = self.catalog
        new, followed = set(slots), []
        for slot in slots:
            entry = catalog.keys[slot]
            parent = catalog.committed.get(b"k" + parents[block_key_of(entry)] + shard_of(entry))
            if parent is None or parent == slot:
                continue
            catalog.chains.link(slot, parent)
            if parent not in new:
                followed += [parent, *catalog.chains.ancestors(parent, MAX_ANCESTORS)]
        return followed

    def _refresh(self, slots: Iterable[int], tick: int) -> None:
        for slot in slots:
            self.catalog.touched[slot] = tick
            if self.catalog.links.queue[slot]:
                self.arena_of(slot).policy.refresh(slot)

    def _make_evictable(self, slots: Iterable[int]) -> None:
        catalog = self.catalog
        words, flags, pins, segments = (
            catalog.words,
            catalog.flags,
            catalog.pins,
            self.pool.segments,
        )
        for slot in slots:
            if pins[slot] != (slot in self.held) or not self.may_go(slot):
                continue
            arena = segments[words[slot * WORDS + PLACE] >> 32].arena
            assert arena is not None
            if flags[slot] & SOFT_PINNED:
                arena.policy.insert_soft(slot)
            else:
                arena.policy.insert(slot)

    # -- use --------------------------------------------------------------------------

    def touch(self, slots: Iterable[int], now: float) -> None:
        """Hits, hottest last. For a chain that is its last block first."""
        catalog, tick = self.catalog, self.tick(now)
        touched, queue, words = catalog.touched, catalog.links.queue, catalog.words
        neighbours: list[int] = []  # of one segment
        place = -1
        for slot in slots:
            touched[slot] = tick
            if queue[slot]:
                segment = words[slot * WORDS + PLACE] >> 32
                if segment != place:
                    self._touch_neighbours(neighbours)
                    neighbours, place = [], segment
                neighbours.append(slot)
        self._touch_neighbours(neighbours)

    def _touch_neighbours(self, slots: Sequence[int]) -> None:
        if len(slots) == 1:
            self.arena_of(slots[0]).policy.touch(slots[0])
        elif slots:
            self.arena_of(slots[0]).policy.touch_many(slots)

    def pin(self, slot: int) -> None:
        if self.catalog.links.queue[slot]:
            self.arena_of(slot).policy.remove(slot)
        self._add_pin(slot)

    def unpin(self, slot: int) -> None:
        catalog = self.catalog
        self._take_pin(slot)
        if catalog.flags[slot] & DEAD:
            self._free_unpinned(slot)
        elif catalog.pins[slot] == (slot in self.held) and self._is_committed(slot):
            if catalog.flags[slot] & REQUEST_SCOPED:
                self.drop([slot], DropReason.USED)
                return
            if not self.may_go(slot):
                return
            policy = self.arena_of(slot).policy
            if catalog.flags[slot] & SOFT_PINNED:
                policy.insert_soft(slot)
            else:
                policy.insert_used(slot)

    def may_go(self, slot: int) -> bool:
        """False: it waits for a copy in another tier before it may be evicted."""
        needed = self.evictable_flags
        return not needed or bool(self.catalog.flags[slot] & needed)

    def set_flag(self, slot: int, flag: int) -> None:
        """Of a committed entry; one that may be evicted now takes its place in the order."""
        catalog = self.catalog
        waited = not self.may_go(slot)
        catalog.flags[slot] |= flag
        if waited and catalog.pins[slot] == (slot in self.held):
            self._make_evictable([slot])

    def hold(self, slot: int) -> None:
        """A pin that is no use: the bytes stay while they are copied elsewhere, but the entry keeps
        its place in the eviction order, and may be dropped from there."""
        assert slot not in self.held, f"slot {slot} is held already"
        self.held.add(slot)
        self._add_pin(slot)

    def release(self, slot: int) -> None:
        self.held.discard(slot)
        self._take_pin(slot)
        if self.catalog.flags[slot] & DEAD:
            self._free_unpinned(slot)

    def _add_pin(self, slot: int) -> None:
        if not self.catalog.pins[slot]:
            self.counters.pinned_bytes += self.occupied(slot)
        self.catalog.pins[slot] += 1
        self.counters.num_pins += 1

    def _take_pin(self, slot: int) -> None:
        self.catalog.pins[slot] -= 1
        self.counters.num_pins -= 1
        if not self.catalog.pins[slot]:
            self.counters.pinned_bytes -= self.occupied(slot)

    def _free_unpinned(self, slot: int) -> None:
        if not self.catalog.pins[slot]:
            self.free(slot)

    def _is_committed(self, slot: int) -> bool:
        return self.catalog.words[slot * WORDS + HEAD] & 0xFF == SlotState.COMMITTED

    # -- ending -----------------------------------------------------------------------

    def drop(self, slots: Sequence[int], reason: DropReason) -> None:
        """Committed entries are misses from now on, and their removal is an event. Space is free
        at once, or with the last unpin."""
        self._remember(slots, reason)
        if reason is DropReason.REPLACED:  # `stored` of the new value says it all
            self.withdraw_many(slots)
        else:
            self.drop_unexplained(slots)

    def drop_unexplained(self, slots: Sequence[int]) -> None:
        """Like `drop`, of so many that `drops` would hold nothing else."""
        catalog = self.catalog
        by_namespace: dict[int, list[bytes]] = {}
        for slot in self._announced(slots):
            by_namespace.setdefault(catalog.namespaces[slot], []).append(catalog.keys[slot])
        self.withdraw_many(slots)
        for namespace, entries in by_namespace.items():
            self.announce("removed", namespace, entries)

    def evict(self, slots: Sequence[int]) -> None:
        """Like `drop`, for victims: announced together by `announce_evictions`, or before the next
        event."""
        catalog = self.catalog
        for slot in self._announced(slots):
            self._evicted.setdefault(catalog.namespaces[slot], []).append(catalog.keys[slot])
        self._remember(slots, DropReason.EVICTED)
        self.counters.evictions += len(slots)
        flags = catalog.flags
        self.counters.evicted_unflushed += sum(not flags[slot] & FLUSHED for slot in slots)
        self.withdraw_many(slots)

    def withdraw_many(self, slots: Sequence[int]) -> None:
        """As `withdraw` of each. Many are freed by columns: a segment full of tiny entries must not
        stop the loop for seconds."""
        if len(slots) < LEAST_BULK:
            for slot in slots:
                self.withdraw(slot)
            return
        self._take_out_many(slots)
        chosen = np.array(slots, np.int64)
        pinned = np.frombuffer(self.catalog.pins, np.uint32)[chosen] > 0
        for slot in chosen[pinned].tolist():
            self._outlive(slot)
        self._free_many(chosen[~pinned])

    def expire(self, now: float) -> bool:
        """Drops up to MAX_EXPIRED_AT_ONCE entries that are due; true when more are."""
        self._drop_expired(self.expiry.pop_due(now, MAX_EXPIRED_AT_ONCE))
        return self.expiry.is_due(now)

    def expire_among(self, entries: Sequence[bytes], now: float) -> None:
        """No answer counts what has expired, however late `expire` comes to it."""
        if self.expiry.is_due(now):
            found = {self.catalog.committed.get(entry, NO_SLOT) for entry in entries}
            self._drop_expired([slot for slot in found if self.expiry.has_passed(slot, now)])

    def _drop_expired(self, slots: Sequence[int]) -> None:
        if slots:
            self.drop(slots, DropReason.EXPIRED)
            self.counters.expirations += len(slots)

    def withdraw(self, slot: int) -> None:
        """Takes a committed entry out without an event."""
        self._take_out(slot)
        self.end(slot)

    def _take_out(self, slot: int) -> None:
        """No key, chain, deadline or queue leads to the slot any more."""
        catalog = self.catalog
        key = catalog.keys[slot]
        del catalog.committed[key]
        if is_block(key):
            catalog.chains.unlink(slot)
        if catalog.retired:
            catalog.count_gone(catalog.namespaces[slot], 1)
        if self.expiry:
            self.expiry.discard(slot)
        if catalog.links.queue[slot]:
            self.arena_of(slot).policy.remove(slot)

    def _take_out_many(self, slots: Sequence[int]) -> None:
        """As `_take_out` of each."""
        catalog = self.catalog
        committed, chains = catalog.committed, catalog.chains
        for slot, key in zip(slots, catalog.keys[slots].tolist(), strict=True):
            del committed[key]
            if is_block(key):
                chains.unlink(slot)
        chosen = np.array(slots, np.int64)
        queued = chosen[np.frombuffer(catalog.links.queue, np.uint8)[chosen] != OUT]
        places = (catalog.table.rows()[queued, PLACE] >> 32).astype(np.int64)
        for segment in np.unique(places).tolist():
            mine: list[int] = queued[places == segment].tolist()
            self.arena_of(mine[0]).policy.remove_many(mine)
        if self.expiry:
            for slot in slots:
                self.expiry.discard(slot)
        if catalog.retired:
            numbers = np.frombuffer(catalog.namespaces, np.uint16)[chosen]
            for edition, count in zip(*np.unique(numbers, return_counts=True), strict=True):
                catalog.count_gone(int(edition), int(count))

    def end(self, slot: int) -> None:
        """Frees the slot's space, or marks it dead while pinned."""
        if self.catalog.pins[slot]:
            self._outlive(slot)
        else:
            self.free(slot)

    def _outlive(self, slot: int) -> None:
        """The pins' holders keep the bytes of what nobody finds any more."""
        self.catalog.flags[slot] |= DEAD
        if self._is_committed(slot):
            self.set_state(slot, SlotState.WITHDRAWN)

    def free(self, slot: int) -> None:
        """The generation is raised before the space can be used again."""
        position = slot * WORDS
        words = self.catalog.words
        segment, offset = words[position + PLACE] >> 32, words[position + OFFSET]
        taken = self.catalog.occupied(slot)
        self.catalog.give_back_slot(slot)
        self.pool.release_extent(segment, offset, taken)

    def _free_many(self, slots: NDArray[np.int64]) -> None:
        """As `free` of each. A segment that loses all its extents, or most of very many, gets a new
        allocator."""
        rows = self.catalog.table.rows()
        places = (rows[slots, PLACE] >> 32).astype(np.int64)
        offsets, taken = rows[slots, OFFSET].astype(np.int64), self.catalog.occupied_of(slots)
        self.catalog.forget(slots)
        for segment in np.unique(places).tolist():
            gone = np.flatnonzero(places == segment)
            if taken[gone].sum() == self.pool.segments[segment].allocator.used_bytes:
                self.pool.keep_only(segment, [])
                continue
            if len(gone) >= WORTH_A_SCAN:
                left = self._left_in(segment)
                if len(left) < len(gone):
                    self.pool.keep_only(segment, left)
                    continue
            for begin, stop in _joined(offsets[gone], taken[gone]):
                self.pool.release_extent(segment, begin, stop - begin)

    def _left_in(self, segment: int) -> list[tuple[int, int]]:
        """(offset, occupied bytes) of what lies in a segment. Looks at every slot."""
        rows = self.catalog.table.rows()
        slots = np.flatnonzero((rows[:, HEAD] & 0xFF != 0) & (rows[:, PLACE] >> 32 == segment))
        spans = self.catalog.occupied_of(slots).tolist()
        return list(zip(rows[slots, OFFSET].tolist(), spans, strict=True))

    def set_state(self, slot: int, state: SlotState) -> None:
        position = slot * WORDS + HEAD
        self.catalog.words[position] = self.catalog.words[position] & ~0xFF | state

    def _remember(self, slots: Sequence[int], reason: DropReason) -> None:
        for slot in slots[-REMEMBERED_DROPS:]:
            entry = self.catalog.keys[slot]
            self.drops[entry] = reason
            self.drops.move_to_end(entry)
        while len(self.drops) > REMEMBERED_DROPS:
            self.drops.popitem(last=False)


def _joined(offsets: NDArray[np.int64], taken: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Disjoint extents as (begin, stop), neighbours as one."""
    order = np.argsort(offsets)
    begins, stops = offsets[order], (offsets + taken)[order]
    gaps = np.flatnonzero(begins[1:] != stops[:-1])
    first, last = np.append(0, gaps + 1), np.append(gaps, len(begins) - 1)
    return list(zip(begins[first].tolist(), stops[last].tolist(), strict=True))


def _new_head(flags: int) -> int:
    """Of a string entry, without its generation."""
    return (EXPIRES if flags & VOLATILE else 0) | pack_head(0, 1, SlotState.COMMITTED)

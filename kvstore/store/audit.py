"""The walk that proves a store's accounts (invariant 5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from ..slots import HEAD, OFFSET, PLACE, WORDS, SlotState
from .catalog import QUARANTINED, REQUEST_SCOPED, Catalog
from .entries import Entries
from .pins import Pins
from .pool import Holder
from .quarantine import Quarantine
from .reservations import Reservations
from .runs import Runs
from .shares import Shares
from .types import AuditReport

MAX_DIFFERENCES = 100


class _Walk:
    """One pass over the columns: what is in use, what it occupies."""

    def __init__(self, entries: Entries) -> None:
        catalog = entries.catalog
        rows = catalog.table.rows()
        self.slots = np.flatnonzero(rows[:, HEAD] & 0xFF)
        states = rows[self.slots, HEAD] & 0xFF
        flags = np.frombuffer(catalog.flags, np.uint8)[self.slots]
        self.pins = np.frombuffer(catalog.pins, np.uint32)[self.slots]
        self.taken = catalog.occupied_of(self.slots)
        self.segments = rows[self.slots, PLACE] >> 32
        self.offsets = rows[self.slots, OFFSET].astype(np.int64)
        self.is_committed = states == SlotState.COMMITTED
        self.committed = self.slots[self.is_committed]
        quarantined = flags & QUARANTINED != 0
        self.quarantined = int(np.count_nonzero(quarantined))
        self.used_bytes = int(self.taken.sum())
        self.reserved_bytes = int(self.taken[states == SlotState.RESERVED].sum())
        self.quarantined_bytes = int(self.taken[quarantined].sum())
        self.pinned_bytes = int(self.taken[self.pins > 0].sum())
        self.request_scoped = set(self.slots[flags & REQUEST_SCOPED != 0].tolist())

    def extents(self, segment: int) -> NDArray[np.int64]:
        """[n, 2] offset and occupied bytes."""
        inside = self.segments == segment
        return np.stack((self.offsets[inside], self.taken[inside]), axis=1)


def audit(
    entries: Entries,
    reservations: Reservations,
    runs: Runs,
    quarantine: Quarantine,
    reserved: Shares,
    pins: Pins,
) -> AuditReport:
    walk = _Walk(entries)
    differences = [
        *_compare_sums(entries, quarantine, reserved, walk),
        *reservations.check_integrity(),
        *runs.check_integrity(),
        *_compare_space(entries, walk),
        *_compare_catalog(entries.catalog, walk.committed),
        *_compare_fills(entries.catalog, walk),
        *_compare_pins(entries, pins, walk),
        *_compare_order(entries, walk),
    ]
    return AuditReport(
        differences=differences[:MAX_DIFFERENCES],
        entries=len(walk.committed),
        used_bytes=walk.used_bytes,
        pins=entries.counters.num_pins,
        in_flight=len(reservations),
        quarantined=walk.quarantined,
        fills=len(entries.catalog.origins),
        request_scoped=len(walk.request_scoped),
    )


def _compare_sums(
    entries: Entries, quarantine: Quarantine, reserved: Shares, walk: _Walk
) -> Iterable[str]:
    counters = entries.counters
    for name, walked, accounted in (
        ("used bytes", walk.used_bytes, entries.pool.used_bytes),
        ("reserved bytes", walk.reserved_bytes, counters.reserved_bytes),
        ("quarantined bytes", walk.quarantined_bytes, counters.quarantined_bytes),
        ("pinned bytes", walk.pinned_bytes, counters.pinned_bytes),
        ("quarantined entries", walk.quarantined, len(quarantine)),
        (
            "shares of reserved bytes",
            walk.reserved_bytes + walk.quarantined_bytes,
            reserved.total()[0],
        ),
        ("slots in use", len(walk.slots), entries.catalog.table.num_used),
    ):
        if walked != accounted:
            yield f"{name}: {walked} by walking, {accounted} by account"


def _compare_space(entries: Entries, walk: _Walk) -> Iterable[str]:
    for segment in entries.pool.segments:
        live = walk.extents(segment.index)
        for difference in segment.allocator.check_integrity(live):
            yield f"segment {segment.index}: {difference}"
        if (segment.arena is None) != (segment.holder is Holder.FREE):
            yield f"segment {segment.index} is {segment.holder.name} with arena {segment.arena}"
        if segment.holder is Holder.FREE and len(live):
            yield f"segment {segment.index} is free and holds {len(live)} entries"


def _compare_catalog(catalog: Catalog, committed: NDArray[np.int64]) -> Iterable[str]:
    slots = np.fromiter(catalog.committed.values(), np.int64, len(catalog.committed))
    if not np.array_equal(np.sort(slots), committed):
        yield f"{len(committed)} slots are committed, {len(slots)} keys lead to one"
    if catalog.keys[slots].tolist() != [*catalog.committed]:
        for key, slot in catalog.committed.items():
            if catalog.keys[slot] != key:
                yield f"key {key.hex()} leads to slot {slot} of another key"
    for key, slot in catalog.pending.items():
        state = catalog.words[slot * WORDS + HEAD] & 0xFF
        if state != SlotState.RESERVED or catalog.keys[slot] != key:
            yield f"pending key {key.hex()} leads to slot {slot}, which is no reservation of it"


def _compare_fills(catalog: Catalog, walk: _Walk) -> Iterable[str]:
    for slot in catalog.origins:
        if catalog.words[slot * WORDS + HEAD] & 0xFF != SlotState.RESERVED:
            yield f"fill in slot {slot} is no reservation"
    for key, slot in catalog.filling.items():
        if slot not in catalog.origins or catalog.keys[slot] != key:
            yield f"filling key {key.hex()} leads to slot {slot}, which is no fill of it"
    if walk.request_scoped != catalog.request_scoped:
        yield (
            f"{len(walk.request_scoped)} slots are request-scoped, {len(catalog.request_scoped)} "
            "by account"
        )


def _compare_pins(entries: Entries, pins: Pins, walk: _Walk) -> Iterable[str]:
    held = Counter(chain(pins.slots(), entries.held))
    if held.total() != entries.counters.num_pins:
        yield f"pins: {held.total()} held, {entries.counters.num_pins} by account"
    pinned = walk.pins > 0
    columns = (walk.slots[pinned].tolist(), walk.pins[pinned].tolist())
    shown = dict(zip(*columns, strict=True))
    for slot in held.keys() | shown.keys():
        if shown.get(slot, 0) != held[slot]:
            yield f"slot {slot}: {shown.get(slot, 0)} pins in its column, {held[slot]} held"


def _compare_order(entries: Entries, walk: _Walk) -> Iterable[str]:
    """Every committed entry that nobody uses and that may go waits once, in the queue of its
    segment's arena."""
    pool = entries.pool
    owners = {segment.index: segment.arena for segment in pool.segments}
    holds = np.isin(walk.slots, list(entries.held))
    idle = walk.slots[walk.is_committed & (walk.pins == holds)]
    flags = np.frombuffer(entries.catalog.flags, np.uint8)[idle]
    needed = entries.evictable_flags
    expected = idle[flags & needed != 0] if needed else idle
    places = entries.catalog.table.rows()[:, PLACE] >> 32
    waiting = [np.empty(0, np.int64)]
    for arena in [pool.daemon, *pool.arenas.values()]:
        yield from arena.policy.check_integrity()
        slots = np.fromiter(arena.policy, np.int64)
        for segment in np.unique(places[slots]).tolist():
            if owners[segment] is not arena:
                yield f"entries of segment {segment} wait in a queue that is not its own"
        waiting.append(slots)
    if not np.array_equal(np.sort(np.concatenate(waiting)), expected):
        yield f"{len(expected)} entries could be evicted, {sum(map(len, waiting))} wait in queues"

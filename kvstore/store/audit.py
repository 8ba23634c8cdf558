"""The walk that proves a store's accounts (invariant 5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import chain

from ..slots import HEAD, OFFSET, WORDS, SlotState
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
    """What one pass over the slots found, in occupied bytes."""

    def __init__(self, entries: Entries) -> None:
        self.extents: dict[int, list[tuple[int, int]]] = {}
        self.used_bytes = self.reserved_bytes = self.quarantined_bytes = self.pinned_bytes = 0
        self.quarantined = 0
        self.request_scoped: set[int] = set()
        self.committed: list[int] = []
        catalog = entries.catalog
        for slot in catalog.used_slots():
            position = slot * WORDS
            state = catalog.words[position + HEAD] & 0xFF
            taken = entries.occupied(slot)
            place = (catalog.words[position + OFFSET], taken)
            self.extents.setdefault(entries.segment_of(slot), []).append(place)
            self.used_bytes += taken
            if catalog.pins[slot]:
                self.pinned_bytes += taken
            if state == SlotState.RESERVED:
                self.reserved_bytes += taken
            if catalog.flags[slot] & REQUEST_SCOPED:
                self.request_scoped.add(slot)
            if catalog.flags[slot] & QUARANTINED:
                self.quarantined += 1
                self.quarantined_bytes += taken
            if state == SlotState.COMMITTED:
                self.committed.append(slot)


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
        *runs.check_integrity(),
        *_compare_space(entries, walk),
        *_compare_catalog(entries.catalog, walk.committed),
        *_compare_fills(entries.catalog, walk),
        *_compare_pins(entries, pins),
        *_compare_order(entries, walk.committed),
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
        ("slots in use", sum(map(len, walk.extents.values())), entries.catalog.table.num_used),
    ):
        if walked != accounted:
            yield f"{name}: {walked} by walking, {accounted} by account"


def _compare_space(entries: Entries, walk: _Walk) -> Iterable[str]:
    for segment in entries.pool.segments:
        live = walk.extents.get(segment.index, [])
        for difference in segment.allocator.check_integrity(live):
            yield f"segment {segment.index}: {difference}"
        if (segment.arena is None) != (segment.holder is Holder.FREE):
            yield f"segment {segment.index} is {segment.holder.name} with arena {segment.arena}"
        if segment.holder is Holder.FREE and live:
            yield f"segment {segment.index} is free and holds {len(live)} entries"


def _compare_catalog(catalog: Catalog, committed: list[int]) -> Iterable[str]:
    if sorted(catalog.committed.values()) != committed:
        yield f"{len(committed)} slots are committed, {len(catalog.committed)} keys lead to one"
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


def _compare_pins(entries: Entries, pins: Pins) -> Iterable[str]:
    held = Counter(chain(pins.slots(), entries.held))
    if held.total() != entries.counters.num_pins:
        yield f"pins: {held.total()} held, {entries.counters.num_pins} by account"
    for slot in entries.catalog.used_slots():
        if entries.catalog.pins[slot] != held.pop(slot, 0):
            yield f"slot {slot}: {entries.catalog.pins[slot]} pins in its column"
    for slot in held:
        yield f"slot {slot} is pinned and free"


def _compare_order(entries: Entries, committed: list[int]) -> Iterable[str]:
    """Every committed entry that nobody uses and that may go waits once, in the queue of its
    segment's arena."""
    catalog, pool = entries.catalog, entries.pool
    expected = {
        slot
        for slot in committed
        if catalog.pins[slot] == (slot in entries.held) and entries.may_go(slot)
    }
    seen: set[int] = set()
    for arena in [pool.daemon, *pool.arenas.values()]:
        yield from arena.policy.check_integrity()
        for slot in arena.policy:
            if slot in seen or entries.arena_of(slot) is not arena:
                yield f"slot {slot} waits in a queue that is not its own"
            seen.add(slot)
    if seen != expected:
        yield f"{len(expected)} entries could be evicted, {len(seen)} wait in queues"

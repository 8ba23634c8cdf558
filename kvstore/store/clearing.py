"""Dropping everything at once: by columns, not entry by entry, so that a million take well under a
second."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ..slots import HEAD, OFFSET, WORDS, SlotState
from .catalog import STRINGS, Catalog
from .entries import DropReason, Entries
from .namespaces import Namespaces
from .pool import Holder

DROPPED_AT_ONCE = 1 << 10


def clear(
    entries: Entries,
    namespaces: Namespaces,
    *,
    namespace: bytes | None,
    strings_only: bool,
) -> int:
    """Drops a namespace (digest), the string entries, or everything, with events. Returns how
    many entries went. What fills meanwhile ends."""
    catalog = entries.catalog
    edition = edition_of(namespaces, namespace, strings_only=strings_only)
    catalog.doom_fills(
        [
            entry
            for entry, slot in catalog.filling.items()
            if edition in (None, catalog.namespaces[slot])
        ]
    )
    chosen = _committed(catalog, edition)
    if len(chosen) < len(catalog.committed):
        entries.drop(chosen.tolist(), DropReason.CLEARED)
    elif len(chosen):
        drop_all(entries)
        entries.announce_cleared()
    return len(chosen)


def clear_most(entries: Entries, edition: int | None) -> Iterator[int]:
    """Drops in parts of a few milliseconds, between which others may act, what `clear` would have
    to drop one by one: yields how many went. What comes meanwhile is left to `clear`."""
    catalog = entries.catalog
    chosen = _committed(catalog, edition)
    if len(chosen) == len(catalog.committed):
        return
    generations = catalog.table.rows()[chosen, HEAD] >> np.uint64(32)
    places = list(zip(chosen.tolist(), generations.tolist(), strict=True))
    for start in range(0, len(places), DROPPED_AT_ONCE):
        part = [
            slot
            for slot, generation in places[start : start + DROPPED_AT_ONCE]
            if catalog.find(slot, generation) is SlotState.COMMITTED
            and catalog.committed.get(catalog.keys[slot]) == slot
        ]
        entries.drop(part, DropReason.CLEARED)
        yield len(part)


def edition_of(
    namespaces: Namespaces, namespace: bytes | None, *, strings_only: bool
) -> int | None:
    """What entries of a namespace (digest) carry, or string entries; None: everything. -1: nobody
    has opened it here."""
    if strings_only:
        return STRINGS
    if namespace is None:
        return None
    opened = namespaces.find(namespace)
    return -1 if opened is None else opened.edition


def _committed(catalog: Catalog, edition: int | None) -> NDArray[np.int64]:
    slots = np.fromiter(catalog.committed.values(), np.int64, len(catalog.committed))
    if edition is not None:
        slots = slots[np.frombuffer(catalog.namespaces, np.uint16)[slots] == edition]
    return slots


def drop_all(entries: Entries) -> None:
    """Drops every committed entry without events. Pinned ones become dead."""
    catalog, pool = entries.catalog, entries.pool
    for slot in [slot for slot in catalog.committed.values() if catalog.pins[slot]]:
        entries.withdraw(slot)
    gone = np.fromiter(catalog.committed.values(), np.int64, len(catalog.committed))
    catalog.committed.clear()
    catalog.forget(gone)
    for arena in [pool.daemon, *pool.arenas.values()]:
        arena.policy.clear()
    entries.expiry.clear()
    live: dict[int, list[tuple[int, int]]] = {}
    for slot in catalog.used_slots():
        place = (catalog.words[slot * WORDS + OFFSET], catalog.occupied(slot))
        live.setdefault(entries.segment_of(slot), []).append(place)
    for segment in pool.segments:
        if segment.holder is not Holder.FREE:
            pool.keep_only(segment.index, live.get(segment.index, []))


WORTH_GIVING_BACK = 4096
"""Entries whose memory (about 1 MiB) is worth a pass over the heap, which takes milliseconds."""


def give_memory_back(entries: Entries) -> None:
    """Shrinks the catalog to what it holds and returns free heap pages to the machine."""
    entries.catalog.trim()
    gc.collect()  # also empties the interpreter's free lists: a few tuples there hold whole arenas
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
    if malloc_trim is not None:
        malloc_trim(0)

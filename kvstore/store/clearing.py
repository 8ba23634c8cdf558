"""Dropping everything at once: by columns, not entry by entry, so that a million take well under a
second."""

from __future__ import annotations

import ctypes
import gc

import numpy as np

from ..slots import OFFSET, WORDS
from .catalog import STRINGS
from .entries import DropReason, Entries
from .namespaces import Namespaces
from .pool import Holder


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
    if namespace is None and not strings_only:
        number = None
    else:
        opened = None if strings_only else namespaces.find(namespace or b"")
        if opened is None and not strings_only:
            return 0
        number = opened.edition if opened else STRINGS
    catalog.doom_fills(
        [
            entry
            for entry, slot in catalog.filling.items()
            if number is None or catalog.namespaces[slot] == number
        ]
    )
    slots = list(catalog.committed.values())
    chosen = slots if number is None else [s for s in slots if catalog.namespaces[s] == number]
    if len(chosen) < len(slots):
        entries.drop(chosen, DropReason.CLEARED)
    elif chosen:
        drop_all(entries)
        entries.announce_cleared()
    return len(chosen)


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

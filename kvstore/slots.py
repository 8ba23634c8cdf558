"""Header slots: 64 bytes an entry in a memfd of their own, written by the daemon, read by every
client.

A reader copies an entry's bytes, then looks at its slot: if the head word is still the one it was
told, the bytes it copied were the entry's. The daemon raises the generation before it reuses space,
so no round trip is needed.

word 0   generation u32 « 32 | flags u8 « 24 | watermark u16 « 8 | state u8     one 8-byte load
word 1   segment u32 « 32 | number of extents u32
word 2   offset       word 3   length       word 4   checksum of a single extent, 0: not known
words 5–7 reserved

  FREE ──reserve──► RESERVED ──commit──► COMMITTED ──drop──► FREE (generation + 1)
                        │                    └──drop while pinned──► WITHDRAWN ──last unpin──► FREE
                        └──abort──► QUARANTINED ──writer surely stopped──► FREE (generation + 1)

COMMITTED: a key leads to these bytes. WITHDRAWN: none does any more, but they are intact for those
who pinned them. So a reader may keep what a lookup told it, and use it again without asking, while
the head word stays what it was; entries with EXPIRES end by themselves, and are looked up each
time.

Slot 0 is never an entry. Its word 1 is the daemon's heartbeat, CLOCK_MONOTONIC in milliseconds: a
reader that finds it older than BEAT_SECONDS asks, since a daemon that is away cannot say that an
entry was replaced elsewhere.
"""

from __future__ import annotations

import enum

LAYOUT_VERSION = 1
"""Of segments and slot table as clients map them."""
SLOT_BYTES = 64
WORDS = SLOT_BYTES // 8
HEAD, PLACE, OFFSET, LENGTH, CHECKSUM = range(5)


class SlotState(enum.IntEnum):
    FREE = 0
    RESERVED = 1
    COMMITTED = 2
    QUARANTINED = 3
    WITHDRAWN = 4


EXPIRES = 1 << 24
"""Flag of the head word."""
HEARTBEAT = PLACE
"""Word of the table: slot 0's second."""
BEAT_SECONDS = 0.5


def pack_head(generation: int, watermark: int, state: SlotState) -> int:
    return generation << 32 | watermark << 8 | state


WRITTEN = (SlotState.RESERVED, SlotState.COMMITTED, SlotState.WITHDRAWN)


class SlotReader:
    """Read side over a mapped slot table (`memoryview` of any format)."""

    def __init__(self, table: memoryview) -> None:
        self._words = table.cast("B").cast("Q")

    def head(self, slot: int) -> int:
        return self._words[slot * WORDS]

    def is_current(self, slot: int, generation: int) -> bool:
        """True while a key leads to the entry of that generation."""
        head = self._words[slot * WORDS]
        return head >> 32 == generation and head & 0xFF == SlotState.COMMITTED

    def is_intact(self, slot: int, generation: int) -> bool:
        """True while the bytes are those of the committed entry of that generation, whether or not
        a key still leads to it: what a pin promises."""
        head = self._words[slot * WORDS]
        state = head & 0xFF
        return head >> 32 == generation and state in (SlotState.COMMITTED, SlotState.WITHDRAWN)

    def watermark(self, slot: int, generation: int) -> int | None:
        """Number of leading layers that are complete, or None when the entry of that generation is
        gone."""
        head = self._words[slot * WORDS]
        if head >> 32 != generation or head & 0xFF not in WRITTEN:
            return None
        return head >> 8 & 0xFFFF

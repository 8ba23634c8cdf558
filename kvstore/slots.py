"""Header slots: 64 bytes an entry in a memfd of their own, written by the daemon, read by every
client.

A reader copies an entry's bytes, then looks at its slot: if the head word is still the one it was
told, the bytes it copied were the entry's. The daemon raises the generation before it reuses space,
so no round trip is needed.

word 0   generation u32 « 32 | watermark u16 « 8 | state u8     one aligned 8-byte load
word 1   segment u32 « 32 | number of extents u32
word 2   offset       word 3   length       word 4   checksum of a single extent
words 5–7 reserved

  FREE ──reserve──► RESERVED ──commit──► COMMITTED ──drop──► FREE (generation + 1)
                        └──abort──► QUARANTINED ──writer surely stopped──► FREE (generation + 1)

COMMITTED says that the bytes are intact, not that a key still leads to them: a removed or replaced
entry that someone has pinned stays COMMITTED until the last unpin. What a key leads to is the
catalog's to say, so readers look it up each time and keep no locations beyond their ticket.
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


def pack_head(generation: int, watermark: int, state: SlotState) -> int:
    return generation << 32 | watermark << 8 | state


class SlotReader:
    """Read side over a mapped slot table (`memoryview` of any format)."""

    def __init__(self, table: memoryview) -> None:
        self._words = table.cast("B").cast("Q")

    def head(self, slot: int) -> int:
        return self._words[slot * WORDS]

    def is_current(self, slot: int, generation: int) -> bool:
        """True while the committed entry that had `generation` still owns its bytes."""
        head = self._words[slot * WORDS]
        return head >> 32 == generation and head & 0xFF == SlotState.COMMITTED

    def watermark(self, slot: int, generation: int) -> int | None:
        """Number of leading layers that are complete, or None when the entry of that generation is
        gone."""
        head = self._words[slot * WORDS]
        if head >> 32 != generation or head & 0xFF not in (SlotState.RESERVED, SlotState.COMMITTED):
            return None
        return head >> 8 & 0xFFFF

"""Reading entries: where their bytes lie, their extents, whether they are what was put."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from moontide.transfer import checksum

from ..errors import InvalidRequest
from ..keys import is_block
from ..slots import CHECKSUM, LENGTH, OFFSET, PLACE, SLOT_BYTES, WORDS, WRITTEN
from ..types import Extent, Located
from .catalog import Catalog
from .namespaces import Namespaces
from .pool import Pool

_LOCATION = struct.Struct("<4xI4xIQQQ")
"""Of a header slot: generation, segment, offset, length, checksum."""


class Contents:
    def __init__(self, catalog: Catalog, pool: Pool, namespaces: Namespaces) -> None:
        self._catalog = catalog
        self._pool = pool
        self._namespaces = namespaces

    def locate_all(self, slots: Sequence[int]) -> list[Located | None]:
        """None for NO_SLOT."""
        unpack, words = _LOCATION.unpack_from, self._catalog.words
        return [
            Located(slot, *unpack(words, slot * SLOT_BYTES)) if slot else None for slot in slots
        ]

    def length(self, slot: int) -> int:
        return self._catalog.words[slot * WORDS + LENGTH]

    def buffer(self, slot: int, generation: int) -> memoryview:
        """Raises InvalidRequest unless an entry of that generation is written there or its bytes
        still stay. A run is no entry."""
        words, position = self._catalog.words, slot * WORDS
        if (
            self._catalog.find(slot, generation) not in WRITTEN
            or not words[position + PLACE] & 0xFFFFFFFF
        ):
            raise InvalidRequest(f"slot {slot} holds no entry of generation {generation}")
        memory = self._pool.segments[words[position + PLACE] >> 32].memory
        offset = words[position + OFFSET]
        return memory.buffer[offset : offset + words[position + LENGTH]]

    def extents(self, slot: int, generation: int) -> list[Extent]:
        """The complete ones. Raises like `buffer`."""
        length = len(self.buffer(slot, generation))
        words, position = self._catalog.words, slot * WORDS
        complete = words[position] >> 8 & 0xFFFF
        sums = memoryview(self.checksums([slot])).cast("Q")
        entry = self._catalog.entry(slot)
        if not is_block(entry):
            return [Extent(0, length, sums[0])][:complete]
        shape = self._namespaces.get(self._catalog.namespaces[slot]).geometry_of(entry)
        return [
            Extent(index * shape.stride, shape.layer_bytes, sums[index])
            for index in range(complete)
        ]

    def checksum(self, slot: int, extent: int) -> int:
        """Of one complete or announced extent, 0 of any other."""
        table = self._catalog.checksums.get(slot)
        if table is None:
            return self._catalog.words[slot * WORDS + CHECKSUM]
        return int.from_bytes(table[8 * extent : 8 * extent + 8], "little")

    def checksums(self, slots: Sequence[int]) -> bytes:
        """u64 LE each, entry after entry, 0 where an extent is neither complete nor announced."""
        words, tables = self._catalog.words, self._catalog.checksums
        return b"".join(
            [
                tables.get(slot) or words[slot * WORDS + CHECKSUM].to_bytes(8, "little")
                for slot in slots
            ]
        )

    def is_intact(self, slot: int, generation: int) -> bool:
        """Sums every complete extent again. Reads the whole entry. Where the producer made no
        checksum there is nothing to compare with."""
        data = self.buffer(slot, generation)
        return all(
            not expected or checksum(data[offset : offset + length]) == expected
            for offset, length, expected in self.extents(slot, generation)
        )

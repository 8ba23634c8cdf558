"""Values as they lie in the segments that this process has mapped, each proved by its header slot:
what was copied is the entry's as long as the slot's head word stays what it was."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from itertools import compress
from typing import TypeVar

from moontide.transfer import CopyHelper

from ..slots import SLOT_BYTES, WORDS, SlotState, pack_head
from ..types import Located
from .counters import ClientCounters
from .notes import Place
from .targets import Target

T = TypeVar("T")
MAX_TOGETHER_BYTES = 256 << 10
"""A batch of smaller values is copied by the caller alone, in columns."""
COMMITTED = pack_head(0, 1, SlotState.COMMITTED)
"""Head word of a string entry that does not expire, without its generation."""
_GONE = -1
"""No head word."""
_SLOT = struct.Struct("<Q4xIQQQ")
"""Head word, segment, offset, length, checksum."""


class MappedValues:
    """Of one life of a daemon, whose slot table is `words`. Thread-safe without a lock."""

    def __init__(
        self, words: memoryview, segments: Mapping[int, memoryview], counters: ClientCounters
    ) -> None:
        """`segments`: those mapped so far."""
        self.words = words
        self._segments = segments
        self._counters = counters

    def places_at(self, slots: Sequence[int], generations: Sequence[int]) -> Sequence[Place | None]:
        """Where the entries lie that a lookup has found; None: a miss (slot 0). Of what is gone by
        now nothing can be copied."""
        unpack, words = _SLOT.unpack_from, self.words
        places = [(slot * WORDS, *unpack(words, slot * SLOT_BYTES)) for slot in slots]
        heads = [generation << 32 | COMMITTED for generation in generations]
        if [place[1] for place in places] == heads:
            return places
        return [
            (place[0], _head_of(generation, place[1]), *place[2:]) if place[0] else None
            for place, generation in zip(places, generations, strict=True)
        ]

    def copy(self, place: Place, index: int, target: Target[T]) -> T | None:
        """None: it has changed, is damaged, or its segment is not mapped yet."""
        word, head, segment, start, size, checksum = place
        words = self.words
        memory = self._segments.get(segment)
        if memory is None or words[word] != head:
            return None
        source = memory[start : start + size]
        if not checksum:
            result, actual = target.copied(index, source), 0
        else:
            result, actual = target.summed(index, source)
        if words[word] == head:
            return result if actual == checksum else None
        self._counters.lost_races += 1
        return None

    def copy_all(
        self,
        places: Sequence[Place | None],
        indices: Sequence[int],
        target: Target[T],
        results: list[T | None],
        helper: CopyHelper,
    ) -> None:
        """`copy` of each to `results`, with `helper` where values are large."""
        known = [place for place in places if place]
        if len(known) < len(places):
            indices = list(compress(indices, places))
        if len(known) < 2:
            for place, index in zip(known, indices, strict=True):
                results[index] = self.copy(place, index, target)
            return
        sizes = [place[4] for place in known]
        if max(sizes) < MAX_TOGETHER_BYTES:
            self._copy_together(known, indices, target, results)
            return

        def copy(position: int) -> None:
            index = indices[position]
            results[index] = self.copy(known[position], index, target)

        helper.share(copy, len(known), sum(sizes))

    def _copy_together(
        self,
        places: Sequence[Place],
        indices: Sequence[int],
        target: Target[T],
        results: list[T | None],
    ) -> None:
        words, segment = self.words, self._segments.get
        memories = [
            segment(at) if words[word] == head else None for word, head, at, _, _, _ in places
        ]
        sources = [
            memory[start : start + size]
            for memory, (_, _, _, start, size, _) in zip(memories, places, strict=True)
            if memory
        ]
        if len(sources) < len(places):
            places = list(compress(places, memories))
            indices = list(compress(indices, memories))
            if not places:
                return
        copied, sums = target.all_summed(indices, sources)
        for place, index, result, actual in zip(places, indices, copied, sums, strict=True):
            word, head, _, _, _, checksum = place
            if words[word] != head:
                self._counters.lost_races += 1
            elif actual == checksum or not checksum:
                results[index] = result


def located_at(place: Place) -> Located:
    return Located(place[0] // WORDS, place[1] >> 32, *place[2:])


def _head_of(generation: int, shown: int) -> int:
    """What the slot's head word holds while an entry of that generation is committed there."""
    is_there = shown >> 32 == generation and shown & 0xFF == SlotState.COMMITTED
    return shown if is_there else _GONE

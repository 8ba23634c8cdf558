"""Where this client last saw entries, so that it reads them again without asking.

  copy from the mapping + xxh3 ──► slot's head word still the same, daemon alive? ──yes──► value
                                        │ no
                                        └──► forgotten; ask, as if nothing had been known

The daemon changes the word before anybody hears that the entry was removed, replaced or evicted,
and before its space is used again. An entry that expires by itself has another word (EXPIRES) than
is expected here, so it is asked for each time. What is not there is never kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from time import monotonic
from typing import NamedTuple, Protocol, TypeVar

from ..keys import EntryId
from ..slots import BEAT_SECONDS, WORDS, SlotState, pack_head
from ..types import Located
from .counters import ClientCounters
from .notes import MAX_USES, Notes, Place

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

MAX_LOCATIONS = 32768
"""In each of the two halves kept."""
_BEAT = 1
"""Word of the slot table that is the daemon's heartbeat."""
_BEAT_MILLISECONDS = BEAT_SECONDS * 1e3
_COMMITTED = pack_head(0, 1, SlotState.COMMITTED)


class Target(Protocol[T_co]):
    """Where the value of entry `index` goes."""

    def copied(self, index: int, source: memoryview) -> T_co:
        """Takes the bytes; the result."""

    def summed(self, index: int, source: memoryview) -> tuple[T_co, int]:
        """As `copied`, with the xxh3-64 of the copy."""


class Spans(NamedTuple):
    """Where values lie in a segment."""

    segment: int
    starts: Sequence[int]
    sizes: Sequence[int]
    checksums: Sequence[int]


class Locations:
    """Of one life of a daemon, whose slot table is `words`. Thread-safe without a lock. Bounded:
    once the recent half is full, the earlier one is forgotten and the recent one takes its
    place."""

    def __init__(
        self,
        words: memoryview,
        segments: Mapping[int, memoryview],
        *,
        notes: Notes,
        counters: ClientCounters,
        on_due: Callable[[], None],
    ) -> None:
        """`segments`: those mapped so far. `on_due` is called when uses should be sent: with each
        heartbeat seen, or when there are many."""
        self._words = words
        self._segments = segments
        self._notes = notes
        self._counters = counters
        self._on_due = on_due
        self._seen_beat = 0
        self._recent: dict[bytes, Place] = {}
        self._earlier: dict[bytes, Place] = {}

    def read(self, entry: EntryId, target: Target[T]) -> T | None:
        """The value, as it is in the store now; None: ask the daemon."""
        place = self._recent.get(entry) or self._find_earlier(entry)
        if place is None:
            return None
        result = self.copy(place, 0, target)
        beat = self._words[_BEAT]
        if result is None or not 0.0 <= monotonic() * 1e3 - beat < _BEAT_MILLISECONDS:
            return None
        self._counters.located_hits += 1
        uses = self._notes.uses
        uses.append(place)
        if beat != self._seen_beat or len(uses) >= MAX_USES:
            self._seen_beat = beat
            self._on_due()
        return result

    def places(self, entries: Sequence[EntryId]) -> list[Place | None]:
        """Where they were when they were last seen. For each, `copy` tells whether that still
        holds; in the end, `confirm` tells whether all of it may be believed."""
        recent = self._recent
        return [recent.get(entry) or self._find_earlier(entry) for entry in entries]

    def copy(self, place: Place, index: int, target: Target[T]) -> T | None:
        """None: it has changed, or its segment is not mapped yet."""
        word, head, segment, start, end, checksum = place
        words = self._words
        memory = self._segments.get(segment)
        if memory is None or words[word] != head:
            return None
        if not checksum:
            result, actual = target.copied(index, memory[start:end]), 0
        else:
            result, actual = target.summed(index, memory[start:end])
        if words[word] == head:
            return result if actual == checksum else None
        self._counters.lost_races += 1
        return None

    def confirm(self, used: Sequence[Place]) -> bool:
        """After these were copied: False when the daemon may have been away."""
        if not self._is_beating():
            return False
        self._counters.located_hits += len(used)
        self._notes.uses += used
        self._on_due()
        return True

    def find(self, entry: EntryId) -> Place | None:
        """Where the entry is now; None: ask the daemon."""
        place = self._recent.get(entry) or self._find_earlier(entry)
        if place is None or self._words[place[0]] != place[1] or not self._is_beating():
            return None
        return place

    def learn(self, entries: Sequence[EntryId], found: Sequence[Located | None]) -> None:
        """What a lookup has told."""
        for entry, located in zip(entries, found, strict=True):
            if located is None:
                continue
            slot, generation, segment, offset, length, checksum = located
            head = generation << 32 | _COMMITTED
            if self._words[slot * WORDS] == head:
                self._make_room(1)
                end = offset + length
                self._recent[entry] = (slot * WORDS, head, segment, offset, end, checksum)

    def learn_run(
        self,
        entries: Sequence[EntryId],
        slots: memoryview,
        generations: memoryview,
        spans: Spans,
    ) -> None:
        """What was just stored; slot 0: was not."""
        self._make_room(len(entries))
        words = [slot * WORDS for slot in slots]
        heads = [generation << 32 | _COMMITTED for generation in generations]
        ends = map(int.__add__, spans.starts, spans.sizes)
        places = zip(
            words, heads, repeat(spans.segment), spans.starts, ends, spans.checksums, strict=False
        )
        if all(slots):
            self._recent.update(zip(entries, places, strict=True))
        else:
            stored = zip(entries, places, strict=True)
            self._recent.update([each for each, slot in zip(stored, slots, strict=True) if slot])

    def clear(self) -> None:
        self._recent = {}
        self._earlier = {}

    def _is_beating(self) -> bool:
        return 0.0 <= monotonic() * 1e3 - self._words[_BEAT] < _BEAT_MILLISECONDS

    def _find_earlier(self, entry: EntryId) -> Place | None:
        place = self._earlier.get(entry)
        if place is not None:
            self._make_room(1)
            self._recent[entry] = place
        return place

    def _make_room(self, count: int) -> None:
        if len(self._recent) + count > MAX_LOCATIONS:
            self._earlier, self._recent = self._recent, {}

"""Where this client last saw entries, so that it reads them again without asking.

  copy from the mapping + xxh3 ──► slot's head word still the same, daemon alive? ──yes──► value
                                        │ no
                                        └──► forgotten; ask, as if nothing had been known

The daemon changes the word before anybody hears that the entry was removed, replaced or evicted,
and before its space is used again. An entry that expires by itself (EXPIRES in its word) is asked
for each time. What is not there is never kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress, repeat
from time import monotonic
from typing import NamedTuple, TypeVar

from ..keys import EntryId
from ..slots import BEAT_SECONDS, EXPIRES, WORDS
from .counters import ClientCounters
from .mapped_values import COMMITTED, MappedValues
from .notes import MAX_USES, Notes, Place
from .targets import Target

T = TypeVar("T")
MAX_LOCATIONS = 32768
"""In each of the two halves kept."""
_BEAT = 1
"""Word of the slot table that is the daemon's heartbeat."""
_BEAT_MILLISECONDS = BEAT_SECONDS * 1e3


Span = tuple[int, int, int, int]
"""Where a value lies: segment, first byte, size, checksum."""


class Spans(NamedTuple):
    """Where values lie in a segment."""

    segment: int
    starts: Sequence[int]
    sizes: Sequence[int]
    checksums: Sequence[int]


class Locations:
    """Of one life of a daemon, whose `values` are mapped. Thread-safe without a lock. Bounded: once
    the recent half is full, the earlier one is forgotten and the recent one takes its place."""

    def __init__(
        self,
        values: MappedValues,
        *,
        notes: Notes,
        counters: ClientCounters,
        on_due: Callable[[], None],
    ) -> None:
        """`on_due` is called when uses should be sent: with each heartbeat seen, or when there are
        many."""
        self._values = values
        self._words = values.words
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
        result = self._values.copy(place, 0, target)
        beat = self._words[_BEAT]
        if result is None or not 0.0 <= monotonic() * 1e3 - beat < _BEAT_MILLISECONDS:
            return None
        self._counters.located_hits += 1
        self._notes.uses.append(place)
        self._tell_uses(beat)
        return result

    def places(self, entries: Sequence[EntryId]) -> list[Place | None]:
        """Where they were when they were last seen. For each, a copy tells whether that still
        holds; in the end, `confirm` tells whether all of it may be believed."""
        places = list(map(self._recent.get, entries))
        if self._earlier and None in places:
            return [
                place or self._find_earlier(entry)
                for place, entry in zip(places, entries, strict=True)
            ]
        return places

    def confirm(self, used: Sequence[Place]) -> bool:
        """After these were copied: False when the daemon may have been away."""
        beat = self._words[_BEAT]
        if not 0.0 <= monotonic() * 1e3 - beat < _BEAT_MILLISECONDS:
            return False
        self._counters.located_hits += len(used)
        self._notes.uses += used
        self._tell_uses(beat)
        return True

    def _tell_uses(self, beat: int) -> None:
        if beat != self._seen_beat or len(self._notes.uses) >= MAX_USES:
            self._seen_beat = beat
            self._on_due()

    def find(self, entry: EntryId) -> Place | None:
        """Where the entry is now; None: ask the daemon."""
        place = self._recent.get(entry) or self._find_earlier(entry)
        if place is None or self._words[place[0]] != place[1] or not self._is_beating():
            return None
        return place

    def learn(self, entries: Sequence[EntryId], places: Sequence[Place | None]) -> None:
        """What a lookup has told. What expires is not kept."""
        self._make_room(len(entries))
        self._recent.update(
            [
                (entry, place)
                for entry, place in zip(entries, places, strict=True)
                if place and not place[1] & EXPIRES
            ]
        )

    def learn_one(self, entry: EntryId, slot: bytes, generation: bytes, span: Span) -> None:
        """As `learn_run`, of one; slot and generation as the wire has them."""
        word = int.from_bytes(slot, "little") * WORDS
        if not word:
            return
        self._make_room(1)
        segment, start, size, checksum = span
        head = int.from_bytes(generation, "little") << 32 | COMMITTED
        self._recent[entry] = (word, head, segment, start, size, checksum)

    def learn_run(
        self,
        entries: Sequence[EntryId],
        slots: memoryview,
        generations: memoryview,
        spans: Spans,
    ) -> None:
        """What was just stored; slot 0: was not."""
        self._make_room(len(entries))
        segment, starts, sizes, checksums = spans
        words = [slot * WORDS for slot in slots]
        heads = [generation << 32 | COMMITTED for generation in generations]
        places = zip(words, heads, repeat(segment), starts, sizes, checksums)
        if all(words):
            self._recent.update(zip(entries, places, strict=True))
        else:
            stored = zip(entries, places, strict=True)
            self._recent.update(compress(stored, words))

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

"""String entries out of the store: found by the daemon or known already, copied and verified here.

  known place ──► copy ──► verified ──► value
                             │ no
  Locate ──► copy from the read-only mapping + xxh3 ──► header slot still the same? ──► value
    ▲                     │ checksum differs, slot the same: ReportCorrupt, a miss       │ no
    └──────────────── the entry changed meanwhile ◄──────────────────────────────────────┘
Without shared memory: Get, values over the socket, verified too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar

from moontide.transfer import CopyHelper, checksum

from .. import wire
from ..errors import OutOfSpace, StoreUnavailable
from ..keys import EntryId
from ..types import Located
from .arrivals import Arrivals
from .batches import batches
from .connections.attachment import Attachment
from .connections.link import Answer, Link
from .counters import ClientCounters
from .deadline import Deadline
from .mapped_values import MappedValues, located_at
from .notes import Place
from .targets import IntoBuffers, Target

T = TypeVar("T")
REPORT_SECONDS = 1.0
MAX_RECEIVED_BYTES = 32 << 20
"""Values of one Get, unless a single value is larger."""
MAX_LOST_RACES = 4
"""An entry that changes faster than it can be copied is then fetched over the socket."""


class Reader:
    """Reads batches of string entries. Results are in the order asked; None is a miss."""

    def __init__(self, link: Link, counters: ClientCounters, helper: CopyHelper) -> None:
        self._link = link
        self._counters = counters
        self._helper = helper

    def read_known(self, entry: EntryId, target: Target[T]) -> T | None:
        """Without asking; None: `read` it."""
        attachment = self._link.attachment
        if attachment is None or attachment.locations is None:
            return None
        return attachment.locations.read(entry, target)

    def find_known(self, entry: EntryId) -> Place | None:
        """Where the entry is now, without asking; None: ask."""
        attachment = self._link.attachment
        if attachment is None or attachment.locations is None:
            return None
        return attachment.locations.find(entry)

    def read_one(self, entry: EntryId, target: Target[T], deadline: Deadline) -> T | None:
        """As `read`, of an entry that is not known."""
        results: list[T | None] = [None]
        pending = [0]
        if self._link.open(deadline).shared_memory:
            found = self._look_up([entry], deadline)
            pending = self._copy_found(pending, found, target, results, deadline)
        if pending:
            self._read_unknown([entry], pending, target, results, deadline)
        return results[0]

    def read(
        self, entries: Sequence[EntryId], target: Target[T], deadline: Deadline
    ) -> list[T | None]:
        results: list[T | None] = [None] * len(entries)
        pending = self._read_known(entries, target, results)
        if pending:
            self._read_unknown(entries, pending, target, results, deadline)
        return results

    def _read_known(
        self, entries: Sequence[EntryId], target: Target[T], results: list[T | None]
    ) -> list[int]:
        """Which are to be looked up."""
        indices = list(range(len(entries)))
        attachment = self._link.attachment
        if attachment is None or attachment.locations is None or attachment.values is None:
            return indices
        locations = attachment.locations
        places = locations.places(entries)
        if not any(places):
            return indices
        attachment.values.copy_all(places, indices, target, results, self._helper)
        missed = [index for index in indices if results[index] is None]
        if len(missed) == len(indices):
            return missed
        if locations.confirm(
            [
                place
                for place, result in zip(places, results, strict=True)
                if place and result is not None
            ]
        ):
            return missed
        results[:] = [None] * len(entries)
        return indices

    def _read_unknown(
        self,
        entries: Sequence[EntryId],
        pending: list[int],
        target: Target[T],
        results: list[T | None],
        deadline: Deadline,
    ) -> None:
        for _ in range(MAX_LOST_RACES):
            if pending and self._link.open(deadline).shared_memory:
                pending = self._read_mapped(entries, pending, target, results, deadline)
        if pending:
            self._read_sent(entries, pending, target, results, deadline)

    def locate(
        self, entries: Sequence[EntryId], deadline: Deadline, pin_s: float | None = None
    ) -> tuple[list[Located | None], Answer]:
        """One message: at most what fits it."""
        answer = self._link.ask(wire.Lookup(list(entries), pin_s), deadline)
        assert isinstance(answer.reply, wire.LookupReply)
        _learn(entries, answer)
        return [Located(*each) if each else None for each in answer.reply.found], answer

    def _look_up(self, entries: Sequence[EntryId], deadline: Deadline) -> _Found | None:
        """None: the daemon that answers by now shares no memory. Raises StoreUnavailable when it
        speaks an older version than the one before."""
        knows_locate = self._link.open(deadline).locations is not None
        message = (wire.Locate if knows_locate else wire.Lookup)(list(entries))
        return _learn(entries, self._link.ask(message, deadline))

    def source(
        self, attachment: Attachment, located: Located, deadline: Deadline
    ) -> memoryview | None:
        """The mapped bytes of an entry, or None when they are not within their segment."""
        segment = attachment.readable(located.segment)
        if segment is None:
            self._link.map_segment(attachment, located.segment, deadline)
            segment = attachment.readable(located.segment)
        if segment is None:
            return None
        source = segment[located.offset : located.offset + located.length]
        return source if len(source) == located.length else None

    def fetch(self, located: Located, deadline: Deadline) -> bytes | None:
        """The bytes of that generation over the socket, verified; None: it is gone."""
        message = wire.Read([located.slot], [located.generation], [0])
        answer = self._link.ask(message, deadline)
        assert isinstance(answer.reply, wire.GetReply)
        if answer.reply.sizes[0] < 0:
            return None
        value = bytes(answer.payload)
        if located.checksum and checksum(value) != located.checksum:
            self._counters.corrupt += 1
            return None
        return value

    def copy_into(self, buffer: memoryview, source: memoryview, located: Located) -> int:
        """The checksum of the copy, if the entry has one. Raises InvalidRequest when the buffer is
        too small."""
        target = IntoBuffers((buffer,), self._helper)
        if located.checksum:
            return target.summed(0, source)[1]
        target.copied(0, source)
        return 0

    def report_corrupt(
        self, attachment: Attachment, located: Located, deadline: Deadline | None = None
    ) -> None:
        """Counts an entry whose bytes are not what was put, and tells the daemon."""
        self._counters.corrupt += 1
        report = wire.ReportCorrupt(located.slot, located.generation)
        if not attachment.retired:
            self._link.ask(report, deadline or Deadline(REPORT_SECONDS))

    def _read_mapped(
        self,
        entries: Sequence[EntryId],
        pending: Sequence[int],
        target: Target[T],
        results: list[T | None],
        deadline: Deadline,
    ) -> list[int]:
        """One round; returns what to look up again. What lies on disk and finds no room beside the
        others is asked for once they are copied."""
        again: list[int] = []
        parts = deque([pending[part] for part in batches([entries[index] for index in pending])])
        while parts:
            indices = parts.popleft()
            asked = [entries[index] for index in indices]
            found = self._look_up(asked, deadline)
            again += self._copy_found(indices, found, target, results, deadline)
            if found and (left := _not_brought(indices, found.places, found.beyond)):
                parts.append(left)
        return again

    def _copy_found(
        self,
        indices: Sequence[int],
        found: _Found | None,
        target: Target[T],
        results: list[T | None],
        deadline: Deadline,
    ) -> list[int]:
        """Maps what must be mapped for it, and reports what is damaged. Returns what to look up
        again."""
        if found is None:
            return list(indices)
        attachment, values = found.attachment, found.values
        attachment.prepare_readable()
        values.copy_all(found.places, indices, target, results, self._helper)
        left = _left(indices, found.places, results)
        if left and self._map(attachment, {place[2] for _, place in left}, deadline):
            again, places = [index for index, _ in left], [place for _, place in left]
            values.copy_all(places, again, target, results, self._helper)
            left = _left(again, places, results)
        changed = []
        for index, place in left:
            located = located_at(place)
            if attachment.readable(located.segment) and attachment.is_current(located):
                self.report_corrupt(attachment, located, deadline)
            else:
                changed.append(index)
        return changed

    def _map(self, attachment: Attachment, segments: Iterable[int], deadline: Deadline) -> bool:
        """Whether there are any that were not mapped before."""
        missing = [segment for segment in segments if attachment.readable(segment) is None]
        with suppress(StoreUnavailable):  # another daemon answers by now
            for segment in missing:
                self._link.map_segment(attachment, segment, deadline)
        return bool(missing)

    def _read_sent(
        self,
        entries: Sequence[EntryId],
        pending: Sequence[int],
        target: Target[T],
        results: list[T | None],
        deadline: Deadline,
    ) -> None:
        """Values that fit one reply for sure are asked for at once, others once their sizes are
        known. What lies on disk and finds no room beside the others is asked for after them."""
        if len(pending) == 1 or target.most_bytes(pending) <= MAX_RECEIVED_BYTES:
            ids = [entries[index] for index in pending]
            groups = [pending[part] for part in batches(ids)]
            missed = self._receive(entries, groups, target, results, deadline)
            pending = missed if len(missed) < len(pending) else ()
        if pending:
            groups = self._sized(pending, [entries[index] for index in pending], deadline)
            self._receive(entries, groups, target, results, deadline)

    def _receive(
        self,
        entries: Sequence[EntryId],
        groups: Iterable[Sequence[int]],
        target: Target[T],
        results: list[T | None],
        deadline: Deadline,
    ) -> list[int]:
        """One Get a group; the misses."""
        waiting, missed = deque(groups), []
        while waiting:
            indices = waiting.popleft()
            arrivals = Arrivals(indices, target)
            message = wire.Get([entries[index] for index in indices])
            try:
                answer = self._link.ask(message, deadline, arrivals.place)
            except OutOfSpace:  # the daemon pins what it sends, at most a share of its pool
                if len(indices) == 1:
                    raise
                middle = len(indices) // 2
                waiting.extendleft([indices[middle:], indices[:middle]])
                continue
            found = dict(arrivals.results(answer.reply, answer.payload))
            for index, result in found.items():
                results[index] = result
                self._counters.corrupt += result is None
            missed += [index for index in indices if index not in found]
        return missed

    def _sized(
        self, pending: Sequence[int], asked: Sequence[EntryId], deadline: Deadline
    ) -> list[Sequence[int]]:
        """Groups of indices whose values fit one reply; misses are left out."""
        groups: list[Sequence[int]] = []
        for part in batches(asked):
            found, answer = self.locate(asked[part], deadline)
            hits = [
                (index, located.length)
                for index, located in zip(pending[part], found, strict=True)
                if located
            ]
            sizes = [size for _, size in hits]
            ids = [asked[0]] * len(hits)
            runs = batches(ids, sizes, MAX_RECEIVED_BYTES)
            groups += [[index for index, _ in hits[run]] for run in runs]
            assert isinstance(answer.reply, wire.LookupReply)
            left = _not_brought(pending[part], found, answer.reply.beyond)
            groups += [[index] for index in left]
        return groups


class _Found(NamedTuple):
    """What a lookup has told."""

    places: Sequence[Place | None]
    attachment: Attachment
    values: MappedValues
    beyond: int


def _learn(entries: Sequence[EntryId], answer: Answer) -> _Found | None:
    """None: without shared memory."""
    reply, attachment = answer.reply, answer.attachment
    if attachment.values is None:
        return None
    slots: Sequence[int]
    generations: Sequence[int]
    if isinstance(reply, wire.LocateReply):
        slots = memoryview(reply.slots).cast("I")
        generations = memoryview(reply.generations).cast("I")
    else:
        assert isinstance(reply, wire.LookupReply)
        slots = [each[0] if each else 0 for each in reply.found]
        generations = [each[1] if each else 0 for each in reply.found]
    places = attachment.values.places_at(slots, generations)
    if attachment.locations is not None:
        attachment.locations.learn(entries, places)
    return _Found(places, attachment, attachment.values, reply.beyond)


def _left(
    indices: Sequence[int], places: Sequence[Place | None], results: Sequence[object | None]
) -> list[tuple[int, Place]]:
    """Which of those that were found have no result."""
    return [
        (index, place)
        for index, place in zip(indices, places, strict=True)
        if place is not None and results[index] is None
    ]


def _not_brought(indices: Sequence[int], found: Sequence[object | None], beyond: int) -> list[int]:
    """Those that lie on disk, perhaps, where others were brought in their place."""
    if not beyond or not any(found):
        return []
    return [index for index, each in zip(indices, found, strict=True) if each is None]

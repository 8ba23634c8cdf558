"""String entries out of the store: found by the daemon, copied and verified here.

  Lookup ──► copy from the read-only mapping + xxh3 ──► header slot still the same? ──► value
    ▲                     │ checksum differs, slot the same: ReportCorrupt, a miss       │ no
    └──────────────── the entry changed meanwhile ◄──────────────────────────────────────┘
Without shared memory: Get, values over the socket, verified too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol, TypeVar

from moontide.transfer import checksum, copy_and_checksum

from .. import wire
from ..errors import InvalidRequest, OutOfSpace, StoreUnavailable
from ..keys import EntryId
from ..types import Located
from .batches import batches
from .connections.attachment import Attachment
from .connections.link import Answer, Link
from .counters import ClientCounters
from .deadline import Deadline

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
MAX_LOST_RACES = 4
"""An entry that changes faster than it can be copied is then fetched over the socket."""


class Target(Protocol[T_co]):
    """Where the value of entry `index` goes: copies `source` and returns (result, xxh3-64 of the
    copy)."""

    def __call__(self, index: int, source: memoryview) -> tuple[T_co, int]: ...


def as_bytes(index: int, source: memoryview) -> tuple[bytes, int]:
    value = bytes(source)
    return value, checksum(value)


def into_buffers(buffers: Sequence[memoryview]) -> Target[int]:
    """A target that fills `buffers`, one an entry, and gives sizes."""

    def fill(index: int, source: memoryview) -> tuple[int, int]:
        buffer = buffers[index]
        if len(buffer) < len(source):
            raise InvalidRequest(
                f"buffer of {len(buffer)} bytes is too small for an entry of {len(source)}; "
                "ask size(key) first"
            )
        return len(source), copy_and_checksum(buffer[: len(source)], source)

    return fill


class Reader:
    """Reads batches of string entries. Results are in the order asked; None is a miss."""

    def __init__(self, link: Link, counters: ClientCounters) -> None:
        self._link = link
        self._counters = counters

    def read(
        self, entries: Sequence[EntryId], target: Target[T], deadline: Deadline
    ) -> list[T | None]:
        results: list[T | None] = [None] * len(entries)
        pending = list(range(len(entries)))
        for _ in range(MAX_LOST_RACES):
            if pending and self._link.open(deadline).shared_memory:
                pending = self._read_mapped(entries, pending, target, results, deadline)
        if pending:
            self._read_sent(entries, pending, target, results, deadline)
        return results

    def locate(
        self, entries: Sequence[EntryId], deadline: Deadline, pin_s: float | None = None
    ) -> tuple[list[Located | None], Answer]:
        """One message: at most what fits it."""
        answer = self._link.ask(wire.Lookup(list(entries), pin_s), deadline)
        assert isinstance(answer.reply, wire.LookupReply)
        return [Located(*found) if found else None for found in answer.reply.found], answer

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

    def report_corrupt(self, attachment: Attachment, located: Located, deadline: Deadline) -> None:
        """Counts an entry whose bytes are not what was put, and tells the daemon."""
        self._counters.corrupt += 1
        report = wire.ReportCorrupt(located.slot, located.generation)
        if not attachment.retired:
            self._link.ask(report, deadline)

    def _read_mapped(
        self,
        entries: Sequence[EntryId],
        pending: Sequence[int],
        target: Target[T],
        results: list[T | None],
        deadline: Deadline,
    ) -> list[int]:
        """One round; returns what to look up again."""
        again: list[int] = []
        asked = [entries[index] for index in pending]
        for part in batches(asked):
            found, answer = self.locate(asked[part], deadline)
            for index, located in zip(pending[part], found, strict=True):
                if located is None:
                    continue
                try:
                    source = self.source(answer.attachment, located, deadline)
                except StoreUnavailable:
                    source = None  # another daemon answers by now
                if source is None:
                    again.append(index)
                    continue
                result, actual = target(index, source)
                if not answer.attachment.is_current(located):
                    self._counters.lost_races += 1
                    again.append(index)
                elif actual == located.checksum:
                    results[index] = result
                else:
                    self.report_corrupt(answer.attachment, located, deadline)
        return again

    def _read_sent(
        self,
        entries: Sequence[EntryId],
        pending: Sequence[int],
        target: Target[T],
        results: list[T | None],
        deadline: Deadline,
    ) -> None:
        asked = [entries[index] for index in pending]
        groups = deque(self._sized(pending, asked, deadline))
        while groups:
            indices = groups.popleft()
            try:
                answer = self._link.ask(wire.Get([entries[index] for index in indices]), deadline)
            except OutOfSpace:  # the daemon pins what it sends, at most a share of its pool
                if len(indices) == 1:
                    raise
                middle = len(indices) // 2
                groups.extendleft([indices[middle:], indices[:middle]])
                continue
            reply = answer.reply
            assert isinstance(reply, wire.GetReply)
            offset = 0
            for index, size, expected in zip(indices, reply.sizes, reply.checksums, strict=True):
                if size < 0:
                    continue
                result, actual = target(index, answer.payload[offset : offset + size])
                offset += size
                if actual == expected:
                    results[index] = result
                else:
                    self._counters.corrupt += 1

    def _sized(
        self, pending: Sequence[int], asked: Sequence[EntryId], deadline: Deadline
    ) -> list[Sequence[int]]:
        """Groups of indices whose values fit one reply; misses are left out. One value always fits
        and is asked for at once."""
        if len(pending) == 1:
            return [pending]
        groups: list[Sequence[int]] = []
        for part in batches(asked):
            found, _ = self.locate(asked[part], deadline)
            hits = [
                (index, located.length)
                for index, located in zip(pending[part], found, strict=True)
                if located
            ]
            sizes = [size for _, size in hits]
            groups += [
                [index for index, _ in hits[run]] for run in batches([asked[0]] * len(hits), sizes)
            ]
        return groups

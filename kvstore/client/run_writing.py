"""Puts through runs: one CommitRun a batch, and the next batch is copied while the daemon works on
the last one.

A value is copied into a run, where nobody sees it, and becomes visible by its CommitRun. Whatever
goes wrong before, the run is given up and its space comes back.
"""

from __future__ import annotations

import struct
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

from moontide.transfer import Bytes, CopyHelper, copy
from moontide.transfer.types import CACHE_LINE_BYTES, PAGE_BYTES, align_up

from .. import wire
from ..errors import StoreUnavailable
from ..keys import EntryId
from ..types import PutResult, PutStatus
from .batches import batches
from .connections.attachment import SegmentTaken
from .connections.frames import OwnerLost
from .connections.link import Link
from .connections.writes import RunningWrites
from .copies import Copies
from .deadline import Deadline
from .granted import GrantedMemory
from .locations import Spans
from .put_options import PutOptions
from .runs import Run, Runs
from .spaces import Space
from .targets import SMALL_VALUE_BYTES

COMMIT_BYTES = 16 << 20
"""Values of one CommitRun, unless a single one is larger."""
MAX_AHEAD = 1
"""CommitRuns unanswered while the next values are copied."""
_PACK_U64 = struct.Struct("<Q").pack
_LINE_MASK = CACHE_LINE_BYTES - 1
_PADDING = [bytes(-count & _LINE_MASK) for count in range(CACHE_LINE_BYTES)]
"""By the size of a value, modulo cache lines."""
_EMPTY_LINE = bytes(CACHE_LINE_BYTES)
"""An empty value has a place too."""
_STORED = PutResult(PutStatus.STORED)
_RESULTS: dict[int, PutResult] = {
    PutStatus.STORED: _STORED,
    PutStatus.EXISTS: PutResult(PutStatus.EXISTS),
}


class Batch:
    """What one CommitRun makes visible. Small values alone are packed: they lie one behind another,
    are joined and copied at once. `offsets` are from where the batch begins; one more: its end."""

    __slots__ = ("entries", "is_packed", "offsets", "sizes", "values")

    def __init__(
        self, entries: Sequence[EntryId], values: Sequence[Bytes], sizes: Sequence[int]
    ) -> None:
        self.entries = entries
        self.values = values
        self.sizes = sizes
        self.is_packed = max(sizes) < PAGE_BYTES
        self.offsets = _offsets(sizes)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def num_bytes(self) -> int:
        return self.offsets[-1]

    def begin(self, front: int) -> int:
        """The first place for it from `front` on."""
        return front if self.is_packed else align_up(front, PAGE_BYTES)


@dataclass(frozen=True, slots=True)
class _Posted:
    """A batch whose CommitRun is on its way. The segment it lies in is held until the answer."""

    request_id: int
    run: Run
    batch: Batch
    begin: int  # in the run
    checksums: list[int]


class RunWriter:
    """Puts batches of string entries of any sizes."""

    def __init__(
        self,
        link: Link,
        memory: GrantedMemory,
        writes: RunningWrites,
        copies: Copies,
        helper: CopyHelper,
    ) -> None:
        self.runs = Runs(link)
        self._link = link
        self._memory = memory
        self._writes = writes
        self._copies = copies
        self._helper = helper

    def put(
        self,
        entries: Sequence[EntryId],
        values: Sequence[Bytes],
        options: PutOptions,
        deadline: Deadline,
    ) -> list[PutResult]:
        """Results of the leading entries for which there were runs."""
        attachment = self._link.open(deadline)
        results: list[PutResult] = []
        waiting: deque[_Posted] = deque()
        parts = _parts(entries, values, min(COMMIT_BYTES, attachment.max_entry_bytes))
        left_bytes = sum([each.num_bytes for each in parts]) if len(parts) > 1 else 0
        try:
            for batch in parts:
                wanted = max(min(left_bytes, attachment.max_entry_bytes), attachment.run_bytes)
                posted = self._post(batch, wanted, options, deadline)
                if posted is None:
                    break
                left_bytes -= batch.num_bytes
                waiting.append(posted)
                if len(waiting) > (0 if _may_be_overtaken(options) else MAX_AHEAD):
                    results += self._collect(waiting[0], options, deadline)
                    self._end(waiting.popleft(), options)
            while waiting:
                results += self._collect(waiting[0], options, deadline)
                self._end(waiting.popleft(), options)
        finally:
            for posted in waiting:
                self._link.forget(posted.run.connection, posted.request_id)
                _let_go(posted)
                if _may_be_overtaken(options):
                    self.runs.give_up(posted.run)
        return results

    def put_one(
        self, entry: EntryId, value: Bytes, options: PutOptions, deadline: Deadline
    ) -> PutResult | None:
        """As `put`, without what only a batch needs: one exchange, and the run is this thread's
        until it is answered. None: there is no run."""
        occupied = _occupied(len(value))
        wanted = max(self._link.open(deadline).run_bytes, occupied)
        while (run := self.runs.take(occupied, wanted, deadline)) is not None:
            try:
                return self._put_in(run, entry, value, options, deadline)
            except (SegmentTaken, OwnerLost):
                deadline.check("put")
        return None

    def _put_in(
        self, run: Run, entry: EntryId, value: Bytes, options: PutOptions, deadline: Deadline
    ) -> PutResult:
        """The run is given back, or given up when anything goes wrong."""
        space, attachment, size = run.space, run.attachment, len(value)
        begin = run.front if size < PAGE_BYTES else align_up(run.front, PAGE_BYTES)
        start = space.offset + begin
        held = False
        try:
            place = [(space.slot, space.generation)]
            memory = self._memory.hold(attachment, space.segment, place, deadline)
            held = True
            self._writes.begin(run.connection)  # until its end no request may be made
            try:
                _prepare(run)
                checksum = self._copies.copy(memory[start : start + size], value)
            finally:
                self._writes.end(run.connection)
            message = wire.CommitRun(
                space.slot,
                space.generation,
                [entry],
                _PACK_U64(begin),
                _PACK_U64(size),
                _PACK_U64(checksum),
                options.if_exists,
                options.ttl_s,
                options.soft_pin,
                options.replicas,
            )
            answer = self._link.act_on(run.connection, message, deadline)
        except BaseException:
            self.runs.give_up(run)
            raise
        finally:
            if held:
                attachment.let_go(space.segment)
        run.front = begin + _occupied(size)
        self.runs.give_back(run)
        reply = _run_reply(answer.reply, 1)
        if options.ttl_s is None and attachment.locations is not None:
            span = (space.segment, start, size, checksum)
            attachment.locations.learn_one(entry, reply.slots, reply.generations, span)
        return _result(reply.statuses[0], reply.reason)

    def _post(
        self, batch: Batch, wanted: int, options: PutOptions, deadline: Deadline
    ) -> _Posted | None:
        """None: there is no run."""
        while (run := self._take(batch, wanted, deadline)) is not None:
            try:
                return self._fill_and_post(run, batch, options, deadline)
            except (SegmentTaken, OwnerLost):
                deadline.check("put")
        return None

    def _take(self, batch: Batch, wanted: int, deadline: Deadline) -> Run | None:
        return self.runs.take(batch.num_bytes, max(wanted, batch.num_bytes), deadline)

    def _fill_and_post(
        self, run: Run, batch: Batch, options: PutOptions, deadline: Deadline
    ) -> _Posted:
        """The run is given back, if not `_may_be_overtaken`; given up when anything goes wrong."""
        space = run.space
        place = [(space.slot, space.generation)]
        begin = batch.begin(run.front)
        end = begin + batch.num_bytes
        held = False
        try:
            memory = self._memory.hold(run.attachment, space.segment, place, deadline)
            held = True
            self._writes.begin(run.connection)  # until its end no request may be made
            try:
                _prepare(run)
                target = memory[space.offset + begin : space.offset + end]
                checksums = self._fill(batch, target)
            finally:
                self._writes.end(run.connection)
            message = _commit_message(space, batch, begin, checksums, options)
            request_id = self._link.post_on(run.connection, message, deadline)
        except BaseException:
            if held:
                run.attachment.let_go(space.segment)
            self.runs.give_up(run)
            raise
        run.front = end
        if not _may_be_overtaken(options):
            self.runs.give_back(run)
        return _Posted(request_id, run, batch, begin, checksums)

    def _end(self, posted: _Posted, options: PutOptions) -> None:
        """It is answered."""
        _let_go(posted)
        if _may_be_overtaken(options):
            self.runs.give_back(posted.run)

    def _fill(self, batch: Batch, target: memoryview) -> list[int]:
        """Copies the values to their places; their checksums."""
        values, sizes, offsets = batch.values, batch.sizes, batch.offsets
        if batch.is_packed and len(values) > 1:
            sums = self._copies.sums(values)
            padding = [_PADDING[size & _LINE_MASK] if size else _EMPTY_LINE for size in sizes]
            if any(padding):
                joined = b"".join(chain.from_iterable(zip(values, padding, strict=True)))
            else:
                joined = b"".join(values)
            copy(target[: len(joined)], joined)
            return sums
        if max(sizes) < SMALL_VALUE_BYTES:
            places = [
                target[start : start + size]
                for start, size in zip(offsets[:-1], sizes, strict=True)
            ]
            for place, value in zip(places, values, strict=True):
                place[:] = value
            return self._copies.sums(places)
        sums = [0] * len(values)

        def fill(index: int) -> None:
            start = offsets[index]
            sums[index] = self._copies.copy(target[start : start + sizes[index]], values[index])

        self._helper.share(fill, len(values), batch.num_bytes)
        return sums

    def _collect(self, posted: _Posted, options: PutOptions, deadline: Deadline) -> list[PutResult]:
        run, batch = posted.run, posted.batch
        count = len(batch)
        answer = self._link.collect(run.connection, posted.request_id, deadline)
        reply = _run_reply(answer, count)
        if options.ttl_s is None and run.attachment.locations is not None:
            run.attachment.locations.learn_run(
                batch.entries,
                memoryview(reply.slots).cast("I"),
                memoryview(reply.generations).cast("I"),
                Spans(
                    run.space.segment,
                    _shifted(batch.offsets, run.space.offset + posted.begin),
                    batch.sizes,
                    posted.checksums,
                ),
            )
        if not any(reply.statuses):
            return [_STORED] * count
        return [_result(status, reply.reason) for status in reply.statuses]


def _parts(entries: Sequence[EntryId], values: Sequence[Bytes], most_bytes: int) -> list[Batch]:
    sizes = list(map(len, values))
    if len(sizes) == 1:
        return [Batch(entries, values, sizes)]
    if sum(sizes) + len(sizes) * PAGE_BYTES <= most_bytes:
        occupied = sizes
    else:
        occupied = [size + PAGE_BYTES for size in sizes]
    return [
        Batch(entries[part], values[part], sizes[part])
        for part in batches(entries, occupied, most_bytes)
    ]


def _offsets(sizes: Sequence[int]) -> list[int]:
    """Of values one behind another; one more: the end of the last."""
    least, largest = min(sizes), max(sizes)
    if least < PAGE_BYTES <= largest:
        return _mixed_offsets(sizes)
    alignment = CACHE_LINE_BYTES if largest < PAGE_BYTES else PAGE_BYTES
    mask = alignment - 1
    return list(accumulate([size + mask & ~mask or alignment for size in sizes], initial=0))


def _mixed_offsets(sizes: Sequence[int]) -> list[int]:
    """With values of a page or more, and smaller ones, among them."""
    offsets, reached = [], 0
    for size in sizes:
        alignment = PAGE_BYTES if size >= PAGE_BYTES else CACHE_LINE_BYTES
        reached = align_up(reached, alignment)
        offsets.append(reached)
        reached += align_up(max(size, 1), alignment)
    return [*offsets, reached]


def _shifted(offsets: list[int], begin: int) -> list[int]:
    """Without the last, which is the end."""
    return [begin + offset for offset in offsets[:-1]]


def _commit_message(
    space: Space,
    batch: Batch,
    begin: int,
    checksums: list[int],
    options: PutOptions,
) -> wire.CommitRun:
    return wire.CommitRun(
        slot=space.slot,
        generation=space.generation,
        entries=list(batch.entries),
        offsets=array("Q", _shifted(batch.offsets, begin)).tobytes(),
        sizes=array("Q", batch.sizes).tobytes(),
        checksums=array("Q", checksums).tobytes(),
        if_exists=options.if_exists,
        ttl_s=options.ttl_s,
        soft_pin=options.soft_pin,
        replicas=options.replicas,
    )


def _prepare(run: Run) -> None:
    """When it is first written to."""
    if not run.front:
        run.attachment.prepare(run.space.segment, run.space.offset, run.num_bytes)


def _may_be_overtaken(options: PutOptions) -> bool:
    """The daemon may ask other nodes before it acts, and goes on with later requests meanwhile:
    nothing else may be asked of the run until the answer."""
    return options.if_exists == "replace"


def _let_go(posted: _Posted) -> None:
    posted.run.attachment.let_go(posted.run.space.segment)


def _occupied(size: int) -> int:
    """Bytes of a run that a value of `size` takes, alignment at its end included."""
    return (
        align_up(size, PAGE_BYTES) if size >= PAGE_BYTES else align_up(size or 1, CACHE_LINE_BYTES)
    )


def _run_reply(reply: wire.Reply, count: int) -> wire.RunReply:
    if not isinstance(reply, wire.RunReply) or len(reply.statuses) != count:
        raise StoreUnavailable(f"the store answered {count} entries with {reply!r:.100}")
    return reply


def _result(status: int, reason: str) -> PutResult:
    return _RESULTS.get(status) or PutResult(PutStatus(status), reason)

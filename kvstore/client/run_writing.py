"""Puts through runs: one CommitRun a batch, and the next batches are copied while the daemon works
on the last ones.

A value is copied into a run, where nobody sees it, and becomes visible by its CommitRun. Whatever
goes wrong before, the run is given up and its space comes back.
"""

from __future__ import annotations

import struct
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from moontide.transfer import Bytes, CopyHelper, copy, do_nothing
from moontide.transfer.types import PAGE_BYTES, align_up

from .. import wire
from ..keys import EntryId
from ..run_layout import occupied_bytes
from ..types import PutResult
from .connections.attachment import Holder, SegmentTaken
from .connections.frames import OwnerLost
from .connections.link import Link
from .connections.writes import RunningWrites
from .copies import LEAST_ANNOUNCED_BYTES, Copies, index_of_last
from .deadline import Deadline
from .granted import GrantedMemory
from .locations import Spans
from .put_options import PutOptions
from .put_results import STORED, result_of, run_reply
from .run_batches import Batch, batches_for_runs
from .runs import Run, Runs
from .targets import SMALL_VALUE_BYTES

T = TypeVar("T")

COMMIT_BYTES = 16 << 20
"""Values of one CommitRun, unless a single one is larger."""
COMMIT_ENTRIES = 512
"""Of one CommitRun, where others follow before its answer."""
MAX_AHEAD = 3
"""CommitRuns unanswered while the next values are copied."""
_PACK_U64 = struct.Struct("<Q").pack


@dataclass(frozen=True, slots=True)
class _Posted:
    """A batch whose CommitRun is on its way. The segment it lies in is held until the answer."""

    request_id: int
    run: Run
    holder: Holder
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
        one_by_one = _may_be_overtaken(options)
        parts = batches_for_runs(
            entries,
            values,
            most_bytes=min(COMMIT_BYTES, attachment.max_entry_bytes),
            most_entries=wire.MAX_KEYS if one_by_one else COMMIT_ENTRIES,
        )
        left_bytes = sum([each.num_bytes for each in parts]) if len(parts) > 1 else 0
        try:
            for batch in parts:
                wanted = max(min(left_bytes, attachment.max_entry_bytes), attachment.run_bytes)
                posted = self._post(batch, wanted, options, deadline)
                if posted is None:
                    break
                left_bytes -= batch.num_bytes
                waiting.append(posted)
                if len(waiting) > (0 if one_by_one else MAX_AHEAD):
                    results += self._collect(waiting[0], options, deadline)
                    self._end(waiting.popleft(), options)
            while waiting:
                results += self._collect(waiting[0], options, deadline)
                self._end(waiting.popleft(), options)
        finally:
            for posted in waiting:
                self._link.forget(posted.run.connection, posted.request_id)
                posted.holder.end()
                if one_by_one:
                    self.runs.give_up(posted.run)
        return results

    def put_one(
        self, entry: EntryId, value: Bytes, options: PutOptions, deadline: Deadline
    ) -> PutResult | None:
        """As `put`, without what only a batch needs: one exchange, and the run is this thread's
        until it is answered. None: there is no run."""
        occupied = occupied_bytes(len(value))
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
        space, size = run.space, len(value)
        begin = run.front if size < PAGE_BYTES else align_up(run.front, PAGE_BYTES)
        try:
            copy = partial(self._copy, value, self._announcement(run, size))
            checksum = self._fill(run, run.holder, begin, size, copy, deadline)
            message = wire.CommitRun(
                space.slot,
                space.generation,
                [entry],
                _PACK_U64(begin),
                _PACK_U64(size),
                _PACK_U64(checksum),
                *options,
            )
            answer = self._link.act_on(run.connection, message, deadline)
            run.holder.end()
        except BaseException:
            self.runs.give_up(run)
            raise
        run.front = begin + occupied_bytes(size)
        self.runs.give_back(run)
        reply = run_reply(answer.reply, 1)
        locations = run.attachment.locations
        if options.ttl_s is None and locations is not None:
            span = (space.segment, space.offset + begin, size, checksum)
            locations.learn_one(entry, reply.slots, reply.generations, span)
        return result_of(reply.statuses[0], reply.reason)

    def _post(
        self, batch: Batch, wanted: int, options: PutOptions, deadline: Deadline
    ) -> _Posted | None:
        """None: there is no run."""
        wanted = max(wanted, batch.num_bytes)
        while (run := self.runs.take(batch.num_bytes, wanted, deadline)) is not None:
            try:
                return self._post_in(run, batch, options, deadline)
            except (SegmentTaken, OwnerLost):
                deadline.check("put")
        return None

    def _post_in(self, run: Run, batch: Batch, options: PutOptions, deadline: Deadline) -> _Posted:
        """The run is given back, if not `_may_be_overtaken`; given up when anything goes wrong."""
        space, begin, holder = run.space, batch.begin(run.front), Holder(run.attachment)
        try:
            copy_all = partial(self._copy_all, batch, self._announcement(run, batch.num_bytes))
            checksums = self._fill(run, holder, begin, batch.num_bytes, copy_all, deadline)
            message = wire.CommitRun(
                space.slot,
                space.generation,
                list(batch.entries),
                array("Q", batch.offsets_from(begin)).tobytes(),
                array("Q", batch.sizes).tobytes(),
                array("Q", checksums).tobytes(),
                *options,
            )
            request_id = self._link.post_on(run.connection, message, deadline)
        except BaseException:
            holder.end()
            self.runs.give_up(run)
            raise
        run.front = begin + batch.num_bytes
        if not _may_be_overtaken(options):
            self.runs.give_back(run)
        return _Posted(request_id, run, holder, batch, begin, checksums)

    def _end(self, posted: _Posted, options: PutOptions) -> None:
        """It is answered."""
        posted.holder.end()
        if _may_be_overtaken(options):
            self.runs.give_back(posted.run)

    def _fill(
        self,
        run: Run,
        holder: Holder,
        begin: int,
        num_bytes: int,
        fill: Callable[[memoryview], T],
        deadline: Deadline,
    ) -> T:
        """What `fill` says of that part of the run, whose segment is held from now on, until the
        caller ends `holder`."""
        space = run.space
        place = [(space.slot, space.generation)]
        memory = self._memory.hold(holder, space.segment, place, deadline)
        self._writes.begin(run.connection)  # until its end no request may be made
        try:
            if not run.front:  # it is written to for the first time
                run.attachment.prepare(space.segment, space.offset, run.num_bytes)
            start = space.offset + begin
            return fill(memory[start : start + num_bytes])
        finally:
            self._writes.end()

    def _announcement(self, run: Run, num_bytes: int) -> Callable[[], None]:
        """Wakes the daemon while the last of them are copied."""
        if num_bytes < LEAST_ANNOUNCED_BYTES:
            return do_nothing
        return partial(self._link.announce, run.connection)

    def _copy(self, value: Bytes, before_last: Callable[[], None], target: memoryview) -> int:
        """The checksum."""
        return self._copies.copy(target, value, before_last)

    def _copy_all(
        self, batch: Batch, before_last: Callable[[], None], target: memoryview
    ) -> list[int]:
        """Values to their places; their checksums."""
        values, sizes, offsets = batch.values, batch.sizes, batch.offsets
        if max(sizes) < SMALL_VALUE_BYTES:
            before_last()
            return self._copy_small(batch, target)
        sums = [0] * len(values)
        last = index_of_last(sizes)

        def fill(index: int) -> None:
            start, due = offsets[index], before_last if index == last else do_nothing
            place = target[start : start + sizes[index]]
            sums[index] = self._copies.copy(place, values[index], due)

        self._helper.share(fill, len(values), batch.num_bytes)
        return sums

    def _copy_small(self, batch: Batch, target: memoryview) -> list[int]:
        """As `_copy_all`, of values that are not worth a copy call each."""
        values = batch.values
        if batch.is_packed and len(values) > 1:
            joined = batch.joined()
            copy(target[: len(joined)], joined)
            return self._copies.sums(values)
        extents = zip(batch.offsets, batch.sizes, strict=True)
        places = [target[start : start + size] for start, size in extents]
        for place, value in zip(places, values, strict=True):
            place[:] = value
        return self._copies.sums(places)

    def _collect(self, posted: _Posted, options: PutOptions, deadline: Deadline) -> list[PutResult]:
        run, batch = posted.run, posted.batch
        answer = self._link.collect(run.connection, posted.request_id, deadline)
        reply = run_reply(answer, len(batch))
        locations = run.attachment.locations
        if options.ttl_s is None and locations is not None:
            starts = batch.offsets_from(run.space.offset + posted.begin)
            locations.learn_run(
                batch.entries,
                memoryview(reply.slots).cast("I"),
                memoryview(reply.generations).cast("I"),
                Spans(run.space.segment, starts, batch.sizes, posted.checksums),
            )
        if not any(reply.statuses):
            return [STORED] * len(batch)
        return [result_of(status, reply.reason) for status in reply.statuses]


def _may_be_overtaken(options: PutOptions) -> bool:
    """The daemon may ask other nodes before it acts, and goes on with later requests meanwhile:
    nothing else may be asked of the run until the answer."""
    return options.if_exists == "replace"

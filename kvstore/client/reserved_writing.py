"""Puts without a run: large values, and all where the daemon or the connection has no runs.

Small values travel with their Put. Larger ones: Reserve ──► copy + xxh3 into the granted segment
(or Write frames where the client may not map it) ──► Commit. A value that fails on the way is
aborted, so nothing half-written is ever visible and its space comes back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby

from moontide.transfer import Bytes, CopyHelper, do_nothing

from .. import wire
from ..errors import StoreError
from ..keys import EntryId
from ..types import PutResult, PutStatus, ReserveStatus
from .batches import MAX_VALUE_BYTES, batches
from .connections.attachment import Attachment, Holder, SegmentTaken
from .connections.link import Answer, Link
from .connections.writes import RunningWrites
from .copies import Copies, SummedCopies, index_of_last
from .deadline import Deadline
from .granted import GrantedMemory
from .inline_writing import InlineWriter
from .put_options import PutOptions
from .put_results import results_of
from .spaces import Space, abort_message, commit_message, granted_segments

MAX_RESERVED_BYTES = 128 << 20
RESERVED_SHARE = 16
"""One message reserves at most so much, and at most a sixteenth of the pool, unless a single value
is larger."""
LEAST_LARGE_BYTES = 256 << 10
"""Where all values of a Put have so many, it may bring as much as that."""


class ReservedWriter:
    """Puts batches of string entries, in order, one result each."""

    def __init__(
        self,
        link: Link,
        memory: GrantedMemory,
        writes: RunningWrites,
        copies: Copies,
        helper: CopyHelper,
    ) -> None:
        self._link = link
        self._memory = memory
        self._writes = writes
        self._copies = copies
        self._summed = SummedCopies(helper)
        self._helper = helper
        self._inline = InlineWriter(link, self._copies_for)

    def put(
        self,
        entries: Sequence[EntryId],
        values: Sequence[Bytes],
        options: PutOptions,
        deadline: Deadline,
    ) -> list[PutResult]:
        attachment = self._link.open(deadline)
        inline_bytes = (
            attachment.inline_bytes if attachment.shared_memory else attachment.max_entry_bytes
        )
        share = min(MAX_RESERVED_BYTES, attachment.pool_bytes // RESERVED_SHARE)
        results: list[PutResult] = []
        for inline, group in groupby(values, lambda value: len(value) <= inline_bytes):
            sizes = [len(value) for value in group]
            span = slice(len(results), len(results) + len(sizes))
            put = self._inline.put if inline else self._put_reserved
            is_large = not inline or min(sizes) >= LEAST_LARGE_BYTES
            most = max(MAX_VALUE_BYTES, share) if is_large else MAX_VALUE_BYTES
            for part in batches(entries[span], sizes, most):
                results += put(entries[span][part], values[span][part], options, deadline)
        return results

    def _put_reserved(
        self,
        entries: Sequence[EntryId],
        values: Sequence[Bytes],
        options: PutOptions,
        deadline: Deadline,
    ) -> list[PutResult]:
        message = wire.Reserve(list(entries), [len(value) for value in values], *options)
        while True:
            try:
                return self._reserve_and_fill(message, values, deadline)
            except SegmentTaken:
                deadline.check("put")

    def _reserve_and_fill(
        self, message: wire.Reserve, values: Sequence[Bytes], deadline: Deadline
    ) -> list[PutResult]:
        answer = self._link.ask(message, deadline)
        reply = answer.reply
        assert isinstance(reply, wire.Reserved)
        results = [_refusal(status, reply.reason) for status, *_ in reply.results]
        found = [(index, Space.of(result)) for index, result in enumerate(reply.results)]
        spaces = {index: space for index, space in found if space is not None}
        if spaces:
            reserved = [values[index] for index in spaces]
            committed = self._fill_and_commit(answer, list(spaces.values()), reserved, deadline)
            for index, result in zip(spaces, committed, strict=True):
                results[index] = result
        return results

    def _fill_and_commit(
        self,
        answer: Answer,
        spaces: Sequence[Space],
        values: Sequence[Bytes],
        deadline: Deadline,
    ) -> list[PutResult]:
        try:
            with self._held_segments(answer.attachment, spaces, deadline) as segments:
                checksums = self._fill(answer, spaces, values, segments, deadline)
                commit = commit_message(spaces, checksums)
                reply = self._link.act_on(answer.connection, commit, deadline).reply
                return results_of(reply, len(spaces))
        except BaseException:
            self._abort(answer, spaces, deadline)
            raise

    @contextmanager
    def _held_segments(
        self, attachment: Attachment, spaces: Sequence[Space], deadline: Deadline
    ) -> Iterator[dict[int, memoryview]]:
        """The granted segments that `spaces` lie in, mapped and held. Raises SegmentTaken."""
        holder = Holder(attachment)
        try:
            yield {
                index: self._memory.hold(holder, index, reservations, deadline)
                for index, reservations in granted_segments(spaces).items()
            }
        finally:
            holder.end()

    def _fill(
        self,
        answer: Answer,
        spaces: Sequence[Space],
        values: Sequence[Bytes],
        segments: Mapping[int, memoryview],
        deadline: Deadline,
    ) -> list[int]:
        """Puts the bytes into their spaces; their checksums."""
        copies = self._copies_for(answer.attachment)
        sums = [0] * len(values)
        mapped = [index for index, space in enumerate(spaces) if space.writable]
        sizes = [len(values[index]) for index in mapped]
        last = index_of_last(sizes)

        def fill(position: int) -> None:
            index = mapped[position]
            space, value = spaces[index], values[index]
            answer.attachment.prepare(space.segment, space.offset, len(value))
            target = segments[space.segment][space.offset : space.offset + len(value)]
            due = announce if position == last else do_nothing
            sums[index] = copies.copy(target, value, due)

        announce = partial(self._link.announce, answer.connection)
        with self._writes.of(answer.connection):  # in which no request may be made
            self._helper.share(fill, len(mapped), sum(sizes))
        for index, (space, value) in enumerate(zip(spaces, values, strict=True)):
            if not space.writable:
                message = wire.Write(space.slot, space.generation, 0)
                self._link.act_on(answer.connection, message, deadline, [memoryview(value)])
                (sums[index],) = copies.sums([value])
        return sums

    def _copies_for(self, attachment: Attachment) -> Copies:
        """A daemon of version 1 takes a missing checksum for a wrong one."""
        return self._copies if attachment.takes_notes else self._summed

    def _abort(self, answer: Answer, spaces: Sequence[Space], deadline: Deadline) -> None:
        try:
            self._link.act_on(answer.connection, abort_message(spaces), deadline)
        except StoreError:
            return  # the connection is gone, which ends its reservations too


def _refusal(status: int, reason: str) -> PutResult:
    """What a reserve that got no space means for the put."""
    if status == ReserveStatus.EXISTS:
        return PutResult(PutStatus.EXISTS)
    if status == ReserveStatus.FULL:
        return PutResult(PutStatus.FULL, reason)
    return PutResult(PutStatus.FAILED, reason)

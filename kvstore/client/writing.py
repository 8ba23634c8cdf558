"""String entries into the store.

Small values travel with their Put. Larger ones: Reserve ──► copy + xxh3 into the granted segment
(or Write frames where the client may not map it) ──► Commit. A value that fails on the way is
aborted, so nothing half-written is ever visible and its space comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import get_args

from moontide.transfer import checksum, copy_and_checksum

from .. import wire
from ..errors import InvalidRequest, StoreError
from ..keys import EntryId
from ..types import IfExists, PutResult, PutStatus, ReserveStatus
from .batches import batches
from .connections.attachment import Attachment, SegmentTaken
from .connections.link import Answer, Link
from .connections.writes import RunningWrites
from .deadline import Deadline, check_timeout
from .spaces import Space, abort_message, commit_message, granted_segments


@dataclass(frozen=True, slots=True)
class PutOptions:
    if_exists: IfExists = "keep"
    ttl_s: float | None = None
    soft_pin: bool = False
    replicas: int = 1


def put_options(
    if_exists: IfExists, ttl_s: float | None, *, soft_pin: bool, replicas: int
) -> PutOptions:
    """Raises InvalidRequest on a value outside its bounds."""
    if if_exists not in get_args(IfExists):
        raise InvalidRequest(
            f"if_exists is {if_exists!r}; give one of {', '.join(get_args(IfExists))}"
        )
    if not isinstance(replicas, int) or not 1 <= replicas <= wire.MAX_REPLICAS:
        raise InvalidRequest(f"replicas is {replicas!r}; it must lie in 1..{wire.MAX_REPLICAS}")
    if ttl_s is not None:
        ttl_s = check_timeout(ttl_s)
    return PutOptions(if_exists, ttl_s, soft_pin, replicas)


class Writer:
    """Puts batches of string entries, in order, one result each."""

    def __init__(self, link: Link, writes: RunningWrites, on_grant: Callable[[], object]) -> None:
        """`on_grant` is called before a granted segment is first mapped."""
        self._link = link
        self._writes = writes
        self._on_grant = on_grant

    def put(
        self,
        entries: Sequence[EntryId],
        values: Sequence[memoryview],
        options: PutOptions,
        deadline: Deadline,
    ) -> list[PutResult]:
        """Raises InvalidRequest when a value is larger than the store's largest entry."""
        attachment = self._link.open(deadline)
        for value in values:
            if len(value) > attachment.max_entry_bytes:
                raise InvalidRequest(
                    f"value of {len(value)} bytes; this store takes {attachment.max_entry_bytes} "
                    "at most: raise its --segment or split the value"
                )
        results: list[PutResult] = []
        inline_bytes = (
            attachment.inline_bytes if attachment.shared_memory else attachment.max_entry_bytes
        )
        for inline, run in groupby(range(len(entries)), lambda i: len(values[i]) <= inline_bytes):
            indices = list(run)
            span = slice(indices[0], indices[-1] + 1)
            put = self._put_inline if inline else self._put_reserved
            sizes = [len(value) for value in values[span]]
            for part in batches(entries[span], sizes):
                results += put(entries[span][part], values[span][part], options, deadline)
        return results

    def _put_inline(
        self,
        entries: Sequence[EntryId],
        values: Sequence[memoryview],
        options: PutOptions,
        deadline: Deadline,
    ) -> list[PutResult]:
        message = wire.Put(
            entries=list(entries),
            sizes=[len(value) for value in values],
            checksums=[checksum(value) for value in values],
            if_exists=options.if_exists,
            ttl_s=options.ttl_s,
            soft_pin=options.soft_pin,
            replicas=options.replicas,
        )
        return _results(self._link.act(message, deadline, [value for value in values if value]))

    def _put_reserved(
        self,
        entries: Sequence[EntryId],
        values: Sequence[memoryview],
        options: PutOptions,
        deadline: Deadline,
    ) -> list[PutResult]:
        message = wire.Reserve(
            entries=list(entries),
            sizes=[len(value) for value in values],
            if_exists=options.if_exists,
            ttl_s=options.ttl_s,
            soft_pin=options.soft_pin,
            replicas=options.replicas,
        )
        while True:
            try:
                return self._reserve_and_fill(message, values, deadline)
            except SegmentTaken:
                deadline.check("put")

    def _reserve_and_fill(
        self, message: wire.Reserve, values: Sequence[memoryview], deadline: Deadline
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
        values: Sequence[memoryview],
        deadline: Deadline,
    ) -> list[PutResult]:
        try:
            with self._held_segments(answer.attachment, spaces, deadline) as segments:
                checksums = [
                    self._fill(answer, space, value, segments, deadline)
                    for space, value in zip(spaces, values, strict=True)
                ]
                commit = commit_message(spaces, checksums)
                return _results(self._link.act_on(answer.connection, commit, deadline))
        except BaseException:
            self._abort(answer, spaces, deadline)
            raise

    @contextmanager
    def _held_segments(
        self, attachment: Attachment, spaces: Sequence[Space], deadline: Deadline
    ) -> Iterator[dict[int, memoryview]]:
        """The granted segments that `spaces` lie in, mapped and held. Raises SegmentTaken."""
        with ExitStack() as held:
            segments: dict[int, memoryview] = {}
            for index, reservations in granted_segments(spaces).items():
                if not attachment.is_granted(index):
                    self._map_granted(attachment, index, deadline)
                segments[index] = attachment.hold(index, reservations)
                held.callback(attachment.let_go, index)
            yield segments

    def _map_granted(self, attachment: Attachment, segment: int, deadline: Deadline) -> None:
        self._on_grant()
        try:
            self._link.map_segment(attachment, segment, deadline, writable=True)
        except InvalidRequest as error:
            raise SegmentTaken(str(error)) from error

    def _fill(
        self,
        answer: Answer,
        space: Space,
        value: memoryview,
        segments: Mapping[int, memoryview],
        deadline: Deadline,
    ) -> int:
        """Puts the bytes into their space; their checksum."""
        if not space.writable:
            message = wire.Write(space.slot, space.generation, 0)
            self._link.act_on(answer.connection, message, deadline, [value])
            return checksum(value)
        with self._writes.of(answer.connection):  # in which no request may be made
            target = segments[space.segment][space.offset : space.offset + len(value)]
            return copy_and_checksum(target, value)

    def _abort(self, answer: Answer, spaces: Sequence[Space], deadline: Deadline) -> None:
        try:
            self._link.act_on(answer.connection, abort_message(spaces), deadline)
        except StoreError:
            return  # the connection is gone, which ends its reservations too


def _results(answer: Answer) -> list[PutResult]:
    assert isinstance(answer.reply, wire.PutReply)
    return [PutResult(PutStatus(status), reason) for status, reason in answer.reply.results]


def _refusal(status: int, reason: str) -> PutResult:
    """What a reserve that got no space means for the put."""
    if status == ReserveStatus.EXISTS:
        return PutResult(PutStatus.EXISTS)
    if status == ReserveStatus.FULL:
        return PutResult(PutStatus.FULL, reason)
    return PutResult(PutStatus.FAILED, reason)

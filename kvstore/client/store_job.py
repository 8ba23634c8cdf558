"""Storing blocks, layer by layer, into space reserved for them.

  begin_store ──► RESERVING ──► OPEN ──commit, all layers advanced──► COMMITTING ──► DONE
                      └── abort, deadline, a failed layer ──► ENDING ──copies stopped──► Abort
A layer: copied (copy thread; or sent, where the segment may not be written here) ──► Advance, in
order. Nothing is visible to lookups before the commit, and an abort is sent only when no copy runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from moontide.transfer import checksum, copy_and_checksum

from .. import wire
from ..errors import StoreError, StoreUnavailable
from ..types import PutStatus, ReserveStatus
from .attachment import Attachment
from .channel import ChannelReply
from .job import Deliver, Home, Job, describe
from .jobs import JobId, JobStatus, StoreHandle
from .located import Coverage
from .writes import RunningWrites


class Space(NamedTuple):
    """Reserved for one shard of one block."""

    slot: int
    generation: int
    segment: int
    offset: int
    writable: bool


class StoreJob(Job):
    """One `begin_store`. Owns the reservations until commit or abort."""

    def __init__(
        self,
        home: Home,
        deadline_s: float,
        deliver: Deliver,
        *,
        handle: StoreHandle,
        parent: bytes,
        coverage: Coverage,
    ) -> None:
        super().__init__(home, handle.job, deadline_s, deliver)
        self.coverage = coverage
        self.connection = 0
        self.attachment: Attachment | None = None
        self._handle = handle
        self._parent = parent
        self._spaces: list[list[Space | None]] | None = None  # by block, then shard
        self._layers: list[LayerJob] = []  # open ones
        self._commit_wanted = self._committing = False
        self._ending: tuple[JobStatus, str] | None = None

    def all_blocks(self) -> Iterable[int]:
        return range(self._handle.first_block, self._handle.first_block + self._handle.num_blocks)

    def start(self, namespace: int) -> None:
        self.connection, self.attachment = self.channel.connection, self.channel.attachment
        keys = b"".join(self._handle.keys)
        message = wire.ReserveBlocks(namespace, keys, self._parent, self.coverage.packed)
        self.channel.request(message, self._reserved)

    def spaces(self, shard: int) -> list[tuple[int, Space]] | None:
        """(position in the store, space) of each block to be written; None: not known yet."""
        if self._spaces is None:
            return None
        spaces = [(index, block[shard]) for index, block in enumerate(self._spaces)]
        return [(index, space) for index, space in spaces if space is not None]

    def add_layer(self, layer: LayerJob) -> None:
        if self.finished or self._ending is not None:
            layer.fail(StoreUnavailable("its store has ended"))
            return
        self._layers.append(layer)
        if self._spaces is not None:
            layer.go()

    def layer_ended(self, layer: LayerJob, failure: str | None) -> None:
        """`failure` None: the layer is advanced."""
        if layer in self._layers:
            self._layers.remove(layer)
        if failure is not None:
            self.stop(JobStatus.FAILED, failure)
        self._go_on()

    def commit(self) -> None:
        self._commit_wanted = True
        self._go_on()

    def stop(self, status: JobStatus, reason: str) -> None:
        """Ends the store: the space is given back once no copy runs. A commit on its way is not
        recalled: the deadline then only says that nobody knows."""
        if self._ending is None and not self.finished:
            self._ending = (status, reason)
            for layer in list(self._layers):
                layer.stop(JobStatus.CANCELLED, reason)
            self._go_on()

    def lost(self) -> None:
        reason = describe(StoreUnavailable("the connection to the store was lost"))
        self.stop(JobStatus.FAILED, reason)

    # -- replies ----------------------------------------------------------------------

    def _reserved(self, reply: ChannelReply) -> None:
        message = reply.message
        if isinstance(message, wire.Reserved):
            statuses, self._spaces = _by_block(message, len(self.coverage.shards))
            self._abort_incomplete(message)
            if self.finished:
                self._abort()
            else:
                self._handle.statuses = statuses
        if not self.expected(reply):
            return
        for layer in list(self._layers):
            layer.go()
        self._go_on()

    def _committed(self, reply: ChannelReply) -> None:
        if not self.expected(reply):
            return
        assert isinstance(reply.message, wire.PutReply)
        stored = (PutStatus.STORED, PutStatus.EXISTS)
        lost = {
            index
            for (index, _), (status, _) in zip(self._all(), reply.message.results, strict=True)
            if status not in stored
        }
        self._done(lost)

    # -- steps ------------------------------------------------------------------------

    def _go_on(self) -> None:
        if self.finished or self._layers:
            return
        if self._ending is not None:
            self._abort()
            status, reason = self._ending
            self.finish(status, reason=reason)
        elif self._commit_wanted and self._spaces is not None and not self._committing:
            self._committing = True
            spaces = [space for _, space in self._all()]
            if not spaces:
                self._done(set())
                return
            message = wire.Commit(
                [space.slot for space in spaces], [space.generation for space in spaces], []
            )
            self.channel.request(message, self._committed)

    def _done(self, lost: set[int]) -> None:
        """`lost`: positions whose commit failed. A full pool is no failure of the job."""
        there = (ReserveStatus.RESERVED, ReserveStatus.EXISTS)
        statuses = self._handle.statuses or ()
        refused = {index for index, status in enumerate(statuses) if status not in there}
        failed = [self._handle.first_block + index for index in refused | lost]
        self.finish(JobStatus.DONE, failed_blocks=failed)

    def _all(self) -> list[tuple[int, Space]]:
        return [
            (index, space)
            for index, block in enumerate(self._spaces or ())
            for space in block
            if space is not None
        ]

    def _abort(self) -> None:
        """No copy runs any more: the daemon may reuse the space at once."""
        if not self._committing and self.connection == self.channel.connection:
            self._give_back([space for _, space in self._all()])
        self._spaces = []

    def _abort_incomplete(self, reserved: wire.Reserved) -> None:
        """A block that got space for only some of its shards is not written."""
        kept = {space.slot for _, space in self._all()}
        self._give_back(
            [
                Space(*result[1:])
                for result in reserved.results
                if result[0] == ReserveStatus.RESERVED and result[1] not in kept
            ]
        )

    def _give_back(self, spaces: Sequence[Space]) -> None:
        if spaces:
            message = wire.Abort(
                [space.slot for space in spaces], [space.generation for space in spaces]
            )
            self.channel.request(message, lambda reply: None)


def _by_block(
    reserved: wire.Reserved, num_shards: int
) -> tuple[tuple[ReserveStatus, ...], list[list[Space | None]]]:
    """Status and spaces of each block. RESERVED: all of its shards are there or have space."""
    statuses: list[ReserveStatus] = []
    spaces: list[list[Space | None]] = []
    for start in range(0, len(reserved.results), num_shards):
        results = reserved.results[start : start + num_shards]
        worst = max(ReserveStatus(status) for status, *_ in results)
        mine = [
            Space(*result[1:]) if result[0] == ReserveStatus.RESERVED else None
            for result in results
        ]
        if worst is ReserveStatus.EXISTS and any(mine):
            worst = ReserveStatus.RESERVED
        statuses.append(worst)
        spaces.append(mine if worst is ReserveStatus.RESERVED else [None for _ in mine])
    return tuple(statuses), spaces


class Extent(NamedTuple):
    """One layer of one block on its way into its space."""

    space: Space
    offset: int  # within the entry
    source: memoryview


class StoreRun:
    """Copies extents on the copy thread, and sums those that will be sent."""

    def __init__(
        self,
        extents: Sequence[Extent],
        attachment: Attachment,
        writes: RunningWrites,
        connection: int,
    ) -> None:
        self.stopped = False  # set by any thread: end before the next extent
        self.checksums: list[int] = []
        self._extents = extents
        self._attachment = attachment
        self._writes = writes
        self._connection = connection

    def run(self) -> None:
        with self._writes.of(self._connection):
            for extent in self._extents:
                if self.stopped:
                    return
                self.checksums.append(self._copy(extent))

    def _copy(self, extent: Extent) -> int:
        space = extent.space
        if not space.writable:
            return checksum(extent.source)
        segment = self._attachment.begin_write(space.segment)
        if segment is None:
            raise StoreUnavailable(f"segment {space.segment} was taken back")
        try:
            start = space.offset + extent.offset
            return copy_and_checksum(segment[start : start + len(extent.source)], extent.source)
        finally:
            self._attachment.end_write(space.segment)


class LayerJob(Job):
    """One `submit_store`. The sources are read until it has finished."""

    def __init__(
        self,
        home: Home,
        job: JobId,
        deadline_s: float,
        deliver: Deliver,
        *,
        store: StoreJob,
        layer: int,
        sources: Sequence[memoryview | None],
    ) -> None:
        super().__init__(home, job, deadline_s, deliver)
        self._store = store
        self._shard, self._extent = store.coverage.layers[layer]
        self._sources = sources
        self._copying: StoreRun | None = None
        self._stop: tuple[JobStatus, str] | None = None
        self._extents: list[Extent] = []
        self._unmapped = 0

    def start(self, namespace: int) -> None:
        self._store.add_layer(self)

    def go(self) -> None:
        """The store has its space."""
        spaces = self._store.spaces(self._shard) or []
        shard = self._store.coverage.shards[self._shard]
        stride = self._store.coverage.layout.layer_stride(shard, self._store.coverage.block_tokens)
        for index, space in spaces:
            source = self._sources[index]
            if source is None:
                self.fail(StoreError(f"block {index} of the store is RESERVED but has no source"))
                return
            self._extents.append(Extent(space, self._extent * stride, source))
        self._map_segments()

    def stop(self, status: JobStatus, reason: str) -> None:
        if self._copying is not None:
            self._copying.stopped = True
            self._stop = (status, reason)
        else:
            self._end(status, reason)

    def fail(self, error: StoreError) -> None:
        self._end(JobStatus.FAILED, describe(error))

    def _end(self, status: JobStatus, reason: str) -> None:
        if not self.finished:
            self.finish(status, reason=reason)
            self._store.layer_ended(self, None if status is JobStatus.DONE else reason)

    def _map_segments(self) -> None:
        attachment = self._store.attachment
        assert attachment is not None
        segments = {extent.space.segment for extent in self._extents if extent.space.writable}
        missing = [segment for segment in segments if not attachment.is_granted(segment)]
        self._unmapped = len(missing)
        for segment in missing:
            self.channel.map_segment(segment, writable=True, then=self._mapped)
        if not missing:
            self._copy(attachment)

    def _mapped(self, success: bool) -> None:
        """What could not be mapped fails in the copy."""
        self._unmapped -= 1
        if not self._unmapped and not self.finished:
            assert self._store.attachment is not None
            self._copy(self._store.attachment)

    def _copy(self, attachment: Attachment) -> None:
        run = StoreRun(self._extents, attachment, self.channel.writes, self._store.connection)
        self._copying = run
        self.channel.copier.submit(
            run, lambda error: self.channel.post(lambda: self._copied(run, error))
        )

    def _copied(self, run: StoreRun, error: BaseException | None) -> None:
        self._copying = None
        if self._stop is not None:
            self._end(*self._stop)
        elif error is not None:
            self._end(
                JobStatus.FAILED,
                describe(error) if isinstance(error, StoreError) else f"store_error: {error}",
            )
        elif self._store.connection != self.channel.connection:
            self.fail(StoreUnavailable("the connection to the store was lost"))
        elif not self._extents:
            self._end(JobStatus.DONE, "")
        else:
            self._advance(run.checksums)

    def _advance(self, checksums: list[int]) -> None:
        """The daemon handles requests in order: the bytes that are sent arrive first."""
        for extent in self._extents:
            if not extent.space.writable:
                space = extent.space
                message = wire.Write(space.slot, space.generation, extent.offset)
                self.channel.request(message, self._written, [extent.source])
        slots = [extent.space.slot for extent in self._extents]
        generations = [extent.space.generation for extent in self._extents]
        self.channel.request(
            wire.Advance(slots, generations, self._extent, checksums), self._advanced
        )

    def _written(self, reply: ChannelReply) -> None:
        if not isinstance(reply.message, wire.Ok):
            self._refused(reply)

    def _advanced(self, reply: ChannelReply) -> None:
        if isinstance(reply.message, wire.Ok):
            self._end(JobStatus.DONE, "")
        else:
            self._refused(reply)

    def _refused(self, reply: ChannelReply) -> None:
        if isinstance(reply.message, wire.Failure):
            self._end(JobStatus.FAILED, f"{reply.message.code}: {reply.message.message}")
        else:
            self.fail(StoreUnavailable("the connection to the store was lost"))

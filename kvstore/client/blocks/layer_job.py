"""One layer of a store: copied into the granted segments (copy thread) or sent, then advanced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from moontide.transfer import checksum, copy_and_checksum

from ... import wire
from ...errors import InvalidRequest, StoreError, StoreUnavailable
from ..connections.channel import ChannelReply
from ..connections.writes import RunningWrites
from ..spaces import Space
from .job import Deliver, Home, Job, describe
from .located import Coverage
from .types import JobId, JobStatus


class Store(Protocol):
    """The store a layer belongs to: it says `go` once there is space."""

    coverage: Coverage
    connection: int
    segments: Mapping[int, memoryview]  # held from `go` until the store's end

    def add_layer(self, layer: LayerJob) -> None: ...
    def spaces(self, shard: int) -> list[tuple[int, Space]]: ...
    def layer_ended(self, layer: LayerJob, failure: str | None) -> None: ...


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
        segments: Mapping[int, memoryview],
        writes: RunningWrites,
        connection: int,
    ) -> None:
        self.stopped = False  # set by any thread: end before the next extent
        self.checksums: list[int] = []
        self._extents = extents
        self._segments = segments
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
        start = space.offset + extent.offset
        target = self._segments[space.segment][start : start + len(extent.source)]
        return copy_and_checksum(target, extent.source)


class LayerJob(Job):
    """One `submit_store`. The sources are read until it has finished."""

    def __init__(
        self,
        home: Home,
        job: JobId,
        deadline_s: float,
        deliver: Deliver,
        *,
        store: Store,
        layer: int,
        sources: Sequence[memoryview | None],
    ) -> None:
        super().__init__(home, job, deadline_s, deliver)
        self._store = store
        self._shard, self._extent = store.coverage.layers[layer]
        self._sources = sources
        self._extents: list[Extent] = []
        self._copying: StoreRun | None = None
        self._stop: tuple[JobStatus, str] | None = None

    def start(self, namespace: int) -> None:
        self._store.add_layer(self)

    def go(self) -> None:
        """The store has its space, mapped."""
        coverage = self._store.coverage
        stride = coverage.layout.layer_stride(coverage.shards[self._shard], coverage.block_tokens)
        for index, space in self._store.spaces(self._shard):
            source = self._sources[index]
            if source is None:
                self.fail(InvalidRequest(f"block {index} of the store is RESERVED: no source"))
                return
            self._extents.append(Extent(space, self._extent * stride, source))
        run = StoreRun(
            self._extents, self._store.segments, self.channel.writes, self._store.connection
        )
        self._copying = run
        self.channel.copier.submit(
            run, lambda error: self.channel.post(lambda: self._copied(run, error))
        )

    def stop(self, status: JobStatus, reason: str) -> None:
        if self._copying is not None:
            self._copying.stopped = True
            self._stop = (status, reason)
        else:
            self._end(status, reason)

    def fail(self, error: StoreError) -> None:
        self._end(JobStatus.FAILED, describe(error))

    def _copied(self, run: StoreRun, error: BaseException | None) -> None:
        self._copying = None
        if self._stop is not None:
            self._end(*self._stop)
        elif isinstance(error, StoreError):
            self.fail(error)
        elif error is not None:
            self.fail(StoreError(f"copy failed: {error}"))
        elif self._store.connection != self.channel.connection:
            self.fail(StoreUnavailable("the connection to the store was lost"))
        elif self._extents:
            self._advance(run.checksums)
        else:
            self._end(JobStatus.DONE, "")

    def _advance(self, checksums: list[int]) -> None:
        """The daemon handles requests in order: the bytes that are sent arrive first."""
        for space, offset, source in self._extents:
            if not space.writable:
                message = wire.Write(space.slot, space.generation, offset)
                self.channel.request(message, self._written, [source])
        slots = [extent.space.slot for extent in self._extents]
        generations = [extent.space.generation for extent in self._extents]
        advance = wire.Advance(slots, generations, self._extent, checksums)
        self.channel.request(advance, self._advanced)

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

    def _end(self, status: JobStatus, reason: str) -> None:
        if not self.finished:
            self.finish(status, reason=reason)
            self._store.layer_ended(self, None if status is JobStatus.DONE else reason)

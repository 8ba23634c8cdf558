"""Storing blocks, layer by layer, into space reserved for them.

  RESERVING ──► MAPPING ──► OPEN ──commit, all layers advanced──► COMMITTING ──► DONE
      ▲  └─────────┬─────────┴── abort, deadline, a failed layer ──► ENDING ──► Abort
      └ a segment was taken back
Nothing is visible to lookups before the commit, and an abort is sent only when no copy runs. The
granted segments are held from OPEN to the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ... import wire
from ...errors import StoreError, StoreUnavailable
from ...keys import BlockKey
from ...types import PutStatus, ReserveStatus
from ..connections.attachment import Attachment, Holder, SegmentTaken
from ..connections.channel import ChannelReply
from ..spaces import Space, abort_message, commit_message
from .job import Deliver, Home, Job, describe
from .layer_job import LayerJob
from .located import Coverage
from .spaces import BlockSpaces
from .types import JobStatus, StoreHandle

MAX_TRIES = 4
"""Reservations lost to a daemon that takes their segment back, before the store gives up."""


@dataclass(frozen=True, slots=True)
class SpaceRequest:
    """Blocks to reserve: of a prompt or, with `request_ttl_s`, one that is request-scoped."""

    keys: Sequence[BlockKey]
    parent: bytes
    request_ttl_s: float | None = None
    replicas: int = 1


class StoreJob(Job):
    """One `begin_store`: owns the reservations until commit or abort."""

    def __init__(
        self,
        home: Home,
        deadline_s: float,
        deliver: Deliver,
        *,
        handle: StoreHandle,
        space: SpaceRequest,
        coverage: Coverage,
    ) -> None:
        super().__init__(home, handle.job, deadline_s, deliver)
        self.coverage = coverage
        self.connection = 0
        self.segments: Mapping[int, memoryview] = {}
        self._handle = handle
        self._space = space
        self._attachment: Attachment | None = None
        self._holder: Holder | None = None
        self._namespace = 0
        self._tries = 0
        self._spaces: BlockSpaces | None = None
        self._unmapped = 0
        self._open = False
        self._layers: list[LayerJob] = []  # neither advanced nor failed
        self._commit_wanted = self._committing = False
        self._ending: tuple[JobStatus, str] | None = None

    def all_blocks(self) -> Iterable[int]:
        return range(self._handle.first_block, self._handle.first_block + self._handle.num_blocks)

    def start(self, namespace: int) -> None:
        self._namespace = namespace
        self.connection, self._attachment = self.channel.connection, self.channel.attachment
        self._reserve()

    # -- layers -----------------------------------------------------------------------

    def add_layer(self, layer: LayerJob) -> None:
        if self.finished or self._ending is not None:
            layer.fail(StoreUnavailable("its store has ended"))
            return
        self._layers.append(layer)
        if self._open:
            layer.go()

    def spaces(self, shard: int) -> list[tuple[int, Space]]:
        """(position in the store, space) of each block to be written."""
        return self._spaces.of_shard(shard) if self._spaces is not None else []

    def layer_ended(self, layer: LayerJob, failure: str | None) -> None:
        """`failure` None: the layer is advanced."""
        if layer in self._layers:
            self._layers.remove(layer)
        if failure is not None:
            self.stop(JobStatus.FAILED, failure)
        self._go_on()

    # -- what ends it -----------------------------------------------------------------

    def commit(self) -> None:
        self._commit_wanted = True
        self._go_on()

    def stop(self, status: JobStatus, reason: str) -> None:
        """Ends the store: the space is given back once no copy runs. A commit on its way is not
        recalled; nobody knows then whether it was done."""
        if self._ending is None and not self.finished:
            self._ending = (status, reason)
            for layer in list(self._layers):
                layer.stop(JobStatus.CANCELLED, reason)
            self._go_on()

    def fail(self, error: StoreError) -> None:
        self.stop(JobStatus.FAILED, describe(error))

    def lost(self) -> None:
        self.fail(StoreUnavailable("the connection to the store was lost"))

    # -- steps ------------------------------------------------------------------------

    def _reserve(self) -> None:
        self._tries += 1
        space = self._space
        message = wire.ReserveBlocks(
            self._namespace,
            b"".join(space.keys),
            space.parent,
            self.coverage.packed,
            space.request_ttl_s,
            space.request_ttl_s is not None,
            space.replicas,
        )
        self.channel.request(message, self._reserved)

    def _reserved(self, reply: ChannelReply) -> None:
        if isinstance(reply.message, wire.Reserved):
            self._spaces = BlockSpaces(reply.message, len(self.coverage.shards))
            self._give_back(self._spaces.spare)
            if self.finished:
                self._abort()
        if self.expected(reply):
            self._map_segments()

    def _map_segments(self) -> None:
        assert self._spaces is not None
        assert self._attachment is not None
        missing = [
            segment
            for segment in self._spaces.segments()
            if not self._attachment.is_granted(segment)
        ]
        self._unmapped = len(missing)
        for segment in missing:
            self.channel.map_segment(segment, writable=True, then=self._mapped)
        if not missing:
            self._hold_segments()

    def _mapped(self, success: bool) -> None:
        """What could not be mapped shows when it is held."""
        self._unmapped -= 1
        if not self._unmapped and not self.finished:
            self._hold_segments()

    def _hold_segments(self) -> None:
        assert self._spaces is not None
        assert self._attachment is not None
        self._holder = Holder(self._attachment)
        held: dict[int, memoryview] = {}
        try:
            for segment, reservations in self._spaces.segments().items():
                held[segment] = memory = self._holder.hold(segment, reservations)
                self._attachment.prepare(segment, 0, len(memory))
        except SegmentTaken as error:
            self._holder.end()
            self._abort()
            if self._tries < MAX_TRIES:
                self._reserve()
            else:
                self.fail(error)
            return
        self.segments, self._open = held, True
        self._handle.statuses = self._spaces.statuses
        for layer in list(self._layers):
            layer.go()
        self._go_on()

    def _go_on(self) -> None:
        if self.finished or self._layers:
            return
        if self._ending is not None:
            if not self._committing:
                self._abort()
            self._end(*self._ending)
        elif self._commit_wanted and self._open and not self._committing:
            self._committing = True
            spaces = self._writing()
            if spaces:
                self.channel.request(commit_message(spaces), self._committed)
            else:
                self._done(set())

    def _committed(self, reply: ChannelReply) -> None:
        if not self.expected(reply):
            return
        assert isinstance(reply.message, wire.PutReply)
        assert self._spaces is not None
        there = (PutStatus.STORED, PutStatus.EXISTS)
        results = zip(self._spaces.all(), reply.message.results, strict=True)
        self._done({index for (index, _), (status, _) in results if status not in there})

    def _done(self, lost: set[int]) -> None:
        """`lost`: positions whose commit failed. A full pool is no failure of the job."""
        assert self._spaces is not None
        there = (ReserveStatus.RESERVED, ReserveStatus.EXISTS)
        refused = {
            index for index, status in enumerate(self._spaces.statuses) if status not in there
        }
        self._end(JobStatus.DONE, "", [self._handle.first_block + i for i in refused | lost])

    def _end(
        self, status: JobStatus, reason: str, failed_blocks: Iterable[int] | None = None
    ) -> None:
        self.segments = {}
        if self._holder is not None:
            self._holder.end()
        self.finish(status, reason=reason, failed_blocks=failed_blocks)

    # -- giving back ------------------------------------------------------------------

    def _writing(self) -> list[Space]:
        return [space for _, space in self._spaces.all()] if self._spaces is not None else []

    def _abort(self) -> None:
        """No copy runs any more: the daemon may reuse the space at once."""
        self._give_back(self._writing())
        self._spaces = None

    def _give_back(self, spaces: Sequence[Space]) -> None:
        if spaces and self.connection == self.channel.connection:
            self.channel.request(abort_message(spaces), lambda reply: None)

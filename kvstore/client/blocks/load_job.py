"""Loading blocks, from the mapped pool or over the socket, verified extent by extent.

  submitted ─► segments mapped ─► per layer: complete? ─► (Read) ─► copied ─► DONE | FAILED with the
                                  └ AwaitExtents (layer_waits.py)             failed blocks
Blocks that were all there at the lookup are copied at once, as one task. A job told to stop while a
copy runs (on the copy thread) is reported only once the copy has stopped, so that the caller may
then reuse its buffers. Without shared memory, Read and copy take turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from ... import wire
from ...errors import Corrupt, StoreUnavailable, ViewExpired
from ..connections.attachment import Attachment
from ..connections.channel import ChannelReply
from ..connections.frames import ConnectionLost
from .copy_run import CopyRun, Part, Sent
from .job import Deliver, Home, Job, describe
from .layer_waits import LayerWaits
from .located import StoredEntry, StoredExtent
from .types import JobId, JobStatus, Ticket

MAX_RUN_BYTES = 8 << 20
"""Bytes of one Read."""


class LoadJob(Job):
    def __init__(
        self,
        home: Home,
        job: JobId,
        deadline_s: float,
        deliver: Deliver,
        *,
        ticket: Ticket,
        layers: Sequence[Sequence[Part]],
    ) -> None:
        super().__init__(home, job, deadline_s, deliver)
        self._ticket = ticket
        self._layers = layers
        self._attachment: Attachment
        self._waits: LayerWaits
        self._unmapped = 0
        self._to_read: deque[Sequence[Part]] = deque()
        self._reading = False
        self._all_ready = False
        self._copying: set[CopyRun] = set()
        self._stop: tuple[JobStatus, str] | None = None
        self._failed: set[int] = set()
        self._corrupt: set[StoredEntry] = set()

    def all_blocks(self) -> Iterable[int]:
        return {part.block for parts in self._layers for part in parts}

    def start(self, namespace: int) -> None:
        attachment, located = self.channel.attachment, self._ticket.located
        if attachment is None or attachment.instance != located.instance:
            self.fail(ViewExpired("the ticket is of a store that has gone; look up again"))
            return
        self._attachment = attachment
        layers = self._layers
        if located.is_complete:
            layers = [[part for parts in layers for part in parts]]
        self._waits = LayerWaits(self, located, attachment.slots, layers)
        if attachment.shared_memory:
            self._map_segments(attachment)
        else:
            self._waits.go_on()

    def stop(self, status: JobStatus, reason: str) -> None:
        if self._stop is None:
            self._stop = (status, reason)
            for run in self._copying:
                run.stopped = True
            self._go_on()

    def lost(self) -> None:
        if not self._all_ready or self._reading or self._to_read:
            lost = StoreUnavailable("the connection to the store was lost")
            self.stop(JobStatus.FAILED, describe(lost))

    def goes_on(self) -> bool:
        return self._stop is None and not self.finished

    # -- layers -------------------------------------------------------------------------

    def _map_segments(self, attachment: Attachment) -> None:
        missing = [
            segment
            for segment in self._ticket.located.segments(sorted(self.all_blocks()))
            if attachment.readable(segment) is None
        ]
        self._unmapped = len(missing)
        for segment in missing:
            self.channel.map_segment(segment, writable=False, then=self._mapped)
        if not missing:
            self._waits.go_on()

    def _mapped(self, success: bool) -> None:
        """What could not be mapped fails block by block."""
        self._unmapped -= 1
        if not self._unmapped and self.goes_on():
            self._waits.go_on()

    def layer_ready(self, parts: Sequence[Part]) -> None:
        if self._attachment.shared_memory:
            self._copy(parts, None)
        else:
            self._to_read.extend(_runs(parts))
            self._go_on()

    def all_ready(self) -> None:
        self._all_ready = True
        self._go_on()

    def _go_on(self) -> None:
        """Does what is next."""
        if self._copying or self.finished:
            return
        if self._stop is not None:
            status, reason = self._stop
            self.finish(status, reason=reason)
        elif self._reading:
            return
        elif self._to_read:
            self._read(self._to_read.popleft())
        elif self._all_ready:
            self._end()

    # -- over the socket ----------------------------------------------------------------

    def _read(self, parts: Sequence[Part]) -> None:
        extents = [piece.extent for part in parts for piece in part.pieces]
        message = wire.Read(
            [extent.entry.slot for extent in extents],
            [extent.entry.generation for extent in extents],
            [extent.layer for extent in extents],
            is_pinned=self._ticket.located.is_pinned,
        )
        self._reading = True
        self.channel.request(message, lambda reply: self._read_done(parts, extents, reply))

    def _read_done(
        self, parts: Sequence[Part], extents: Sequence[StoredExtent], reply: ChannelReply
    ) -> None:
        if not self.expected(reply) or not self.goes_on():
            return
        message = reply.message
        if not isinstance(message, wire.GetReply) or len(message.sizes) != len(extents):
            raise ConnectionLost(f"the store's answer to a Read of {len(extents)} makes no sense")
        sent: Sent = {}
        offset = 0
        for extent, size in zip(extents, message.sizes, strict=True):
            if size >= 0:
                sent[extent] = reply.payload[offset : offset + size]
                offset += size
        self._reading = False
        self._copy(parts, sent)

    # -- either way --------------------------------------------------------------------

    def _copy(self, parts: Sequence[Part], sent: Sent | None) -> None:
        run = CopyRun(self._attachment, self._ticket.located, parts, sent)
        self._copying.add(run)
        self.channel.copier.submit(
            run, lambda error: self.channel.post(lambda: self._copied(run, error))
        )

    def _copied(self, run: CopyRun, error: BaseException | None) -> None:
        self._copying.remove(run)
        self._failed |= run.failed
        self._corrupt |= run.corrupt
        self._ticket.located.read_bytes += run.read_bytes
        if error is not None:
            self._failed |= {part.block for part in run.parts}
        self._go_on()

    def _end(self) -> None:
        for entry in self._corrupt:
            self.channel.counters.corrupt += 1
            report = wire.ReportCorrupt(entry.slot, entry.generation)
            self.channel.request(report, lambda reply: None)
        failed = self._failed | self._waits.failed
        if not failed:
            self.finish(JobStatus.DONE)
            return
        if self._corrupt:
            reason = describe(Corrupt(f"blocks {sorted(failed)}: bytes do not match"))
        else:
            reason = describe(ViewExpired(f"blocks {sorted(failed)} are no longer there"))
        self.finish(JobStatus.FAILED, failed_blocks=failed, reason=reason)


def _runs(parts: Sequence[Part]) -> Iterator[Sequence[Part]]:
    """Parts whose extents fit one Read each."""
    run: list[Part] = []
    run_bytes = 0
    for part in parts:
        num_bytes = sum(piece.extent.entry.layer_bytes for piece in part.pieces)
        if run and (run_bytes + num_bytes > MAX_RUN_BYTES or len(run) >= wire.MAX_KEYS // 64):
            yield run
            run, run_bytes = [], 0
        run.append(part)
        run_bytes += num_bytes
    if run:
        yield run

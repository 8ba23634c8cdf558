"""Loading blocks: from the mapped pool, or over the socket, verified extent by extent.

  submitted ──► segments mapped ──► copying (copy thread) ──► DONE | FAILED with the failed blocks
A job told to stop while its copy runs is reported only once the copy has stopped, so that the
caller may then reuse its buffers. Without shared memory, Read and copy take turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from moontide.transfer import checksum, copy, copy_and_checksum

from ... import wire
from ...errors import Corrupt, ViewExpired
from ..connections.attachment import Attachment
from ..connections.channel import ChannelReply
from .job import Deliver, Home, Job, describe
from .located import Piece, StoredEntry, StoredExtent
from .types import JobId, JobStatus, Ticket

MAX_RUN_BYTES = 8 << 20
"""Bytes of one Read."""


class Part(NamedTuple):
    """One layer of one block, and the buffer it goes to."""

    block: int
    pieces: list[Piece]
    destination: memoryview


Sent = dict[tuple[int, int, int], memoryview]
"""Extents that came over the socket, by (slot, generation, layer)."""


class CopyRun:
    """Copies parts on the copy thread. Exactly the blocks in `failed` must not be used."""

    def __init__(self, attachment: Attachment, parts: Sequence[Part], sent: Sent | None) -> None:
        self.stopped = False  # set by any thread: end before the next part
        self.failed: set[int] = set()
        self.corrupt: set[StoredEntry] = set()
        self.read_bytes = 0
        self._attachment = attachment
        self._parts = parts
        self._sent = sent

    def run(self) -> None:
        for part in self._parts:
            if self.stopped:
                return
            if all(self._copy(piece, part.destination) for piece in part.pieces):
                self.read_bytes += len(part.destination)
            else:
                self.failed.add(part.block)

    def _copy(self, piece: Piece, destination: memoryview) -> bool:
        source = self._source(piece.extent)
        if source is None:
            return False
        target = destination[piece.target_offset : piece.target_offset + piece.num_bytes]
        if piece.num_bytes == len(source):
            actual = copy_and_checksum(target, source)
        else:  # the checksum is the whole extent's: verify a private copy, then take the run
            private = memoryview(bytes(source))
            actual = checksum(private)
            copy(target, private[piece.source_offset : piece.source_offset + piece.num_bytes])
        if not self._is_current(piece.extent):
            return False
        if actual != piece.extent.checksum:
            self.corrupt.add(piece.extent.entry)
            return False
        return True

    def _source(self, extent: StoredExtent) -> memoryview | None:
        entry = extent.entry
        if self._sent is not None:
            source = self._sent.get((entry.slot, entry.generation, extent.layer))
        else:
            segment = self._attachment.readable(entry.segment)
            end = extent.offset + entry.layer_bytes
            source = None if segment is None else segment[extent.offset : end]
        return None if source is None or len(source) != entry.layer_bytes else source

    def _is_current(self, extent: StoredExtent) -> bool:
        slots = self._attachment.slots
        if slots is None:
            return True  # the daemon checked when it read
        entry = extent.entry
        if slots.is_current(entry.slot, entry.generation):
            return True
        watermark = slots.watermark(entry.slot, entry.generation)  # still being written
        return watermark is not None and watermark > extent.layer


class LoadJob(Job):
    def __init__(
        self,
        home: Home,
        job: JobId,
        deadline_s: float,
        deliver: Deliver,
        *,
        ticket: Ticket,
        parts: Sequence[Part],
    ) -> None:
        super().__init__(home, job, deadline_s, deliver)
        self._ticket = ticket
        self._attachment: Attachment | None = None
        self._parts = parts
        self._runs: Iterator[Sequence[Part]] = iter(())
        self._copying: CopyRun | None = None
        self._stop: tuple[JobStatus, str] | None = None
        self._failed: set[int] = set()
        self._corrupt: set[StoredEntry] = set()
        self._unmapped = 0

    def all_blocks(self) -> Iterable[int]:
        return {part.block for part in self._parts}

    def start(self, namespace: int) -> None:
        self._attachment = attachment = self.channel.attachment
        if attachment is None or attachment.instance != self._ticket.located.instance:
            self.fail(ViewExpired("the ticket is of a store that has gone; look up again"))
        elif attachment.shared_memory:
            self._map_segments(attachment)
        else:
            self._runs = _runs(self._parts)
            self._read_next()

    def stop(self, status: JobStatus, reason: str) -> None:
        if self._copying is not None:
            self._copying.stopped = True
            self._stop = (status, reason)
        else:
            self.finish(status, reason=reason)

    # -- from shared memory ------------------------------------------------------------

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
            self._copy(self._parts, None)

    def _mapped(self, success: bool) -> None:
        """What could not be mapped fails block by block."""
        self._unmapped -= 1
        if not self._unmapped and not self.finished:
            self._copy(self._parts, None)

    # -- over the socket ----------------------------------------------------------------

    def _read_next(self) -> None:
        run = next(self._runs, None)
        if run is None:
            self._end()
            return
        extents = [piece.extent for part in run for piece in part.pieces]
        message = wire.Read(
            [extent.entry.slot for extent in extents],
            [extent.entry.generation for extent in extents],
            [extent.layer for extent in extents],
        )
        self.channel.request(message, lambda reply: self._read(run, extents, reply))

    def _read(
        self, run: Sequence[Part], extents: Sequence[StoredExtent], reply: ChannelReply
    ) -> None:
        if not self.expected(reply):
            return
        assert isinstance(reply.message, wire.GetReply)
        sent: Sent = {}
        offset = 0
        for extent, size in zip(extents, reply.message.sizes, strict=True):
            if size >= 0:
                place = (extent.entry.slot, extent.entry.generation, extent.layer)
                sent[place] = reply.payload[offset : offset + size]
                offset += size
        self._copy(run, sent)

    # -- either way --------------------------------------------------------------------

    def _copy(self, parts: Sequence[Part], sent: Sent | None) -> None:
        assert self._attachment is not None
        run = self._copying = CopyRun(self._attachment, parts, sent)
        self.channel.copier.submit(
            run, lambda error: self.channel.post(lambda: self._copied(run, error))
        )

    def _copied(self, run: CopyRun, error: BaseException | None) -> None:
        self._copying = None
        self._failed |= run.failed
        self._corrupt |= run.corrupt
        self._ticket.located.read_bytes += run.read_bytes
        if error is not None:
            self._failed |= {part.block for part in self._parts}
        if self._stop is not None:
            status, reason = self._stop
            self.finish(status, reason=reason)
        else:
            self._read_next()

    def _end(self) -> None:
        for entry in self._corrupt:
            self.channel.counters.corrupt += 1
            report = wire.ReportCorrupt(entry.slot, entry.generation)
            self.channel.request(report, lambda reply: None)
        if not self._failed:
            self.finish(JobStatus.DONE)
            return
        if self._corrupt:
            reason = describe(Corrupt(f"blocks {sorted(self._failed)}: bytes do not match"))
        else:
            reason = describe(ViewExpired(f"blocks {sorted(self._failed)} are no longer there"))
        self.finish(JobStatus.FAILED, failed_blocks=self._failed, reason=reason)


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

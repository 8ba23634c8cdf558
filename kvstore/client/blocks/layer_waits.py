"""Waiting for layers of blocks that are still being written, or brought here from elsewhere.

  each layer in turn ──every extent there──────────────────────────────► ready
       └─ some are not ──► AwaitExtents ──all complete or their entry ended──┘
The next layer is asked for as soon as one is ready, while that one is copied. Nothing is asked
about extents whose checksum is known and that the header slot shows as complete.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np

from ... import wire
from ...errors import Busy, StoreTimeout
from ...slots import SlotReader
from ..connections.channel import Channel, ChannelReply
from ..connections.frames import ConnectionLost
from .copy_run import Part
from .located import LocatedBlocks, StoredExtent

MAX_AWAITED = 2048
"""Extents of one question."""
AWAIT_SECONDS = 2.0
"""Of one question, which is then repeated: a job that ends early leaves nothing longer behind."""
LEAST_AWAIT_SECONDS = 0.001
RETRY_SECONDS = 0.05


class WaitingJob(Protocol):
    """The job that waits; all on the io thread."""

    @property
    def channel(self) -> Channel: ...
    def remaining(self) -> float: ...  # seconds to its deadline
    def goes_on(self) -> bool: ...  # false from the moment it is to end
    def expected(self, reply: ChannelReply) -> bool: ...
    def layer_ready(self, parts: Sequence[Part]) -> None: ...
    def all_ready(self) -> None: ...


class LayerWaits:
    """Tells `job` of each layer once, in order, and then that all are ready. Blocks whose entry
    ended before it was complete are in `failed`, and in no layer after that."""

    def __init__(
        self,
        job: WaitingJob,
        located: LocatedBlocks,
        slots: SlotReader | None,
        layers: Iterable[Sequence[Part]],
    ) -> None:
        self.failed: set[int] = set()
        self._job = job
        self._located = located
        self._slots = slots
        self._layers: Iterator[Sequence[Part]] = iter(layers)
        self._parts: Sequence[Part] = ()
        self._unanswered = 0

    def go_on(self) -> None:
        """Takes up the next layer."""
        for parts in self._layers:
            self._parts = self._living(parts)
            missing = [
                piece.extent
                for part in self._parts
                for piece in part.pieces
                if self._is_missing(piece.extent)
            ]
            if missing:
                self._ask(missing)
                return
            self._job.layer_ready(self._parts)
        self._job.all_ready()

    def _living(self, parts: Sequence[Part]) -> Sequence[Part]:
        return [part for part in parts if part.block not in self.failed] if self.failed else parts

    def _is_missing(self, extent: StoredExtent) -> bool:
        """Whether the daemon has to say when it is complete, and its checksum. One whose entry has
        ended is not missing: its copy fails."""
        entry = extent.entry
        if extent.layer < entry.extents:
            return False
        if self._slots is None or not self._located.checksum(extent):
            return True
        watermark = self._slots.watermark(entry.slot, entry.generation)
        return watermark is not None and watermark <= extent.layer

    def _ask(self, missing: Sequence[StoredExtent]) -> None:
        by_layer: dict[int, list[StoredExtent]] = {}  # which differ between shards
        for extent in missing:
            by_layer.setdefault(extent.layer, []).append(extent)
        questions = [
            extents[start : start + MAX_AWAITED]
            for extents in by_layer.values()
            for start in range(0, len(extents), MAX_AWAITED)
        ]
        self._unanswered = len(questions)
        for extents in questions:
            self._await(extents)

    def _await(self, extents: Sequence[StoredExtent]) -> None:
        if not self._job.goes_on():
            return
        message = wire.AwaitExtents(
            [extent.entry.slot for extent in extents],
            [extent.entry.generation for extent in extents],
            extents[0].layer,
            max(min(self._job.remaining(), AWAIT_SECONDS), LEAST_AWAIT_SECONDS),
        )
        self._job.channel.request(message, lambda reply: self._answered(extents, reply))

    def _answered(self, extents: Sequence[StoredExtent], reply: ChannelReply) -> None:
        message = reply.message
        if isinstance(message, wire.Failure) and message.code == StoreTimeout.code:
            self._await(extents)
        elif isinstance(message, wire.Failure) and message.code == Busy.code:
            again = time.monotonic() + RETRY_SECONDS
            self._job.channel.call_at(again, lambda: self._await(extents))
        elif self._job.expected(reply) and self._job.goes_on():
            self._learn(extents, message)
            self._unanswered -= 1
            if not self._unanswered:
                self._job.layer_ready(self._living(self._parts))
                self.go_on()

    def _learn(self, extents: Sequence[StoredExtent], message: wire.Reply | None) -> None:
        """Raises ConnectionLost when the answer does not fit the question."""
        count = len(extents)
        if (
            not isinstance(message, wire.ExtentsReply)
            or len(message.complete) != count
            or len(message.checksums) != 8 * count
        ):
            raise ConnectionLost(f"the store's answer about {count} extents makes no sense")
        ended = set()
        checksums = np.frombuffer(message.checksums, "<u8").tolist()
        for extent, complete, checksum in zip(extents, message.complete, checksums, strict=True):
            if complete:
                self._located.learn(extent, checksum)
            else:
                ended.add(extent.entry)
        if ended:
            self.failed |= {
                part.block
                for part in self._parts
                if any(piece.extent.entry in ended for piece in part.pieces)
            }

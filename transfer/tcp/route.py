"""The way to one peer: a queue of pieces and the streams that carry them."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ..batches import Batch, Batches
from ..errors import TransferError
from ..types import SliceState, SliceStatus
from .pieces import MOST_PIECE_BYTES, PIECE_BYTES, Piece, settle
from .stream import Dial, Stream, StreamLimits

logger = logging.getLogger(__name__)

_NO_STREAM = SliceStatus(
    SliceState.FAILED, "unavailable: this process can start no more threads or open no more files"
)


@dataclass(frozen=True, slots=True)
class Peer:
    instance: str
    host: str
    port: int


class Route:
    """Streams come with work, up to `max_streams`, take pieces as their windows allow, and end
    when idle. A lost connection gives back what may be tried again; when none can be made, what
    is queued fails. Thread-safe; the lock is never held while anything is settled or sent."""

    def __init__(
        self,
        peer: Peer,
        dial: Dial,
        batches: Batches,
        *,
        max_streams: int,
        limits: StreamLimits,
    ) -> None:
        self.peer = peer
        self._dial = dial
        self._batches = batches
        self._max_streams = max_streams
        self._limits = limits
        self._lock = threading.Lock()
        self._queue: deque[Piece] = deque()
        self._queued_bytes = 0
        self._streams: list[Stream] = []
        self._closed: SliceStatus | None = None

    def piece_bytes(self, slice_bytes: int) -> int:
        """Two pieces a stream keep all of them busy; each piece costs its requests and answers."""
        share = -(-slice_bytes // (2 * self._max_streams))
        return min(max(share, PIECE_BYTES), MOST_PIECE_BYTES)

    def enqueue(self, batch: Batch, pieces: Sequence[Piece]) -> list[Stream]:
        """Pieces of one batch; they end at once when the batch or this route does. The streams that
        they were offered to."""
        with self._lock:
            ended = batch.ending or self._closed
            stranded: list[Piece] = []
            if ended is None:
                self._queue.extend(pieces)
                self._queued_bytes += sum([piece.view.nbytes for piece in pieces])
                stranded = self._add_streams()
            streams = self._streams
            if len(streams) > 1:
                streams = sorted(streams, key=_asked_bytes)
            share = max(self._queued_bytes // max(len(streams), 1), PIECE_BYTES)
        settle(self._batches, stranded if ended is None else pieces, ended or _NO_STREAM)
        offered = []
        for stream in streams:
            if not self._queue:
                break
            stream.offer(share)
            offered.append(stream)
        return offered

    def withdraw(self, batch: Batch, ending: SliceStatus) -> None:
        """The batch is ending: what is queued is settled, the streams let go of the rest."""
        with self._lock:
            withdrawn = [piece for piece in self._queue if piece.batch is batch]
            if withdrawn:
                self._queue = deque(piece for piece in self._queue if piece.batch is not batch)
                self._queued_bytes -= sum(piece.view.nbytes for piece in withdrawn)
            streams = list(self._streams)
        settle(self._batches, withdrawn, ending)
        for stream in streams:
            stream.sweep()

    def close(self, status: SliceStatus) -> list[Stream]:
        """Ends every piece with `status`; the streams, which are ending."""
        with self._lock:
            self._closed = status
            queued, self._queue = self._queue, deque()
            streams = list(self._streams)
        settle(self._batches, queued, status)
        for stream in streams:
            stream.stop()
        return streams

    # -- called by streams --------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """May be outdated at once, but then whoever brought some offers it yet."""
        return bool(self._queue)

    def take(self, max_pieces: int, max_bytes: int) -> list[Piece]:
        """The next pieces, at most so many; the first may be larger than `max_bytes`."""
        taken: list[Piece] = []
        left = max_bytes
        with self._lock:
            while self._queue and len(taken) < max_pieces and (left > 0 or not taken):
                num_bytes = self._queue[0].view.nbytes
                if taken and num_bytes > left:
                    break
                taken.append(self._queue.popleft())
                left -= num_bytes
            self._queued_bytes -= max_bytes - left
        return taken

    def retire(self, stream: Stream) -> bool:
        """An idle stream wants to end; not while there is work."""
        with self._lock:
            if self._queue and self._closed is None:
                return False
            self._streams.remove(stream)
            return True

    def lost(self, stream: Stream, carried: Sequence[Piece], error: TransferError) -> None:
        """The stream's connection ended, or none came about; `carried` is no longer touched."""
        failed = SliceStatus(SliceState.FAILED, error.reason)
        with self._lock:
            self._streams.remove(stream)
            closed = self._closed
            again = [piece for piece in carried if _may_go_again(piece)] if closed is None else []
            ending = [piece for piece in carried if piece not in again]
            self._queue.extendleft(reversed(again))
            self._queued_bytes += sum(piece.view.nbytes for piece in again)
            if stream.connected:
                ending += self._add_streams()
            else:
                ending += self._stranded()
        settle(self._batches, ending, closed or failed)

    def _add_streams(self) -> list[Piece]:
        """As many as the queue is worth. Pieces that nobody will carry, when this process can have
        no more threads or descriptors."""
        while len(self._streams) < self._max_streams and self._is_worth_another():
            try:
                stream = Stream(self, self._dial, self._batches, self._limits)
                stream.start()
            except (OSError, RuntimeError) as error:
                logger.warning("transfer stream not started error=%s", error)
                return self._stranded()
            self._streams.append(stream)
        return []

    def _is_worth_another(self) -> bool:
        """Something is queued and all there are have enough to do."""
        asked = [stream.asked_bytes for stream in self._streams]
        num_bytes = self._queued_bytes + sum(asked)
        return bool(self._queue) and (all(asked) or num_bytes > 2 * PIECE_BYTES * len(asked))

    def _stranded(self) -> list[Piece]:
        """All that waits, when no stream is left to carry it."""
        if self._streams:
            return []
        stranded = list(self._queue)
        self._queue.clear()
        self._queued_bytes = 0
        return stranded


def _asked_bytes(stream: Stream) -> int:
    return stream.asked_bytes


def _may_go_again(piece: Piece) -> bool:
    return piece.may_retry and piece.batch.ending is None

"""One fill under way: layers are read from a peer's pool straight into ours, verified, and told to
the store one by one.

The reservations are FILL_OWNER's. Each ends here: committed when all of its layers came, aborted
when one did not, and never while a transfer may still write it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from moontide.transfer import checksums
from moontide.transfer.errors import TransferError
from moontide.transfer.types import (
    Opcode,
    Priority,
    SegmentAddress,
    SliceState,
    SliceStatus,
    TransferRequest,
)

from ... import wire
from ...errors import StoreError, StoreUnavailable
from ...store import FILL_OWNER, Store
from .flow import FlowLimit
from .link import PeerLink
from .news import NewsSource
from .plan import FillPlan, Piece, Read, Sums
from .reads import PoolReads

logger = logging.getLogger(__name__)

FloorOf = Callable[[bytes], int]
"""The floor of a namespace (digest) that is in force here."""

MAX_CHUNKS = 3
"""Of one fill, read at once; the first alone, since what is asked for behind it holds it up."""
LOOK_SECONDS = 0.1
"""Between looks whether anybody still wants what is on its way."""
STALLED_SECONDS = 0.5
"""Without a chunk from a peer that does not answer: its fills end, for others to be asked."""


@dataclass(slots=True)
class FillCounters:
    """Since the start."""

    filled_entries: int = 0
    failed_entries: int = 0
    dropped_entries: int = 0  # nobody wanted them any more
    corrupt_extents: int = 0


@dataclass(frozen=True, slots=True)
class FillTools:
    """What every fill of this daemon uses."""

    store: Store
    reads: PoolReads
    flow: FlowLimit  # bytes on their way here, of all fills
    verifiers: ThreadPoolExecutor
    counters: FillCounters
    floor_of: FloorOf


class PeerFill:
    """`run` takes the pieces from their reservation to their end."""

    def __init__(
        self,
        tools: FillTools,
        link: PeerLink,
        plan: FillPlan,
        source: NewsSource,
        deadline: float,
        *,
        priority: Priority = Priority.NORMAL,
    ) -> None:
        self._tools = tools
        self._link = link
        self._plan = plan
        self._source = source
        self._deadline = deadline  # monotonic seconds
        self._priority = priority
        self._window: deque[tuple[list[Read], asyncio.Task[Sums]]] = deque()
        self._pace = link.pace
        self._has_begun = False  # the first chunk has come
        self._moved_at = 0.0  # monotonic seconds
        self._look_at = 0.0

    async def run(self) -> None:
        """Never raises but for cancellation."""
        try:
            async with asyncio.timeout(self._deadline - time.monotonic()):
                await self._fill()
        except (StoreError, TimeoutError) as error:
            logger.info("fill_ended peer=%s reason=%s", self._link.record.id, error or "deadline")
        except Exception:  # the task boundary
            logger.exception("fill_failed peer=%s", self._link.record.id)
        finally:
            self._plan.drop_released(self._tools.store.is_pinned)  # counted as such
            self._plan.give_up(self._plan.pieces)
            self._end(self._plan.take_given_up())
            await self._stop_reads()
            self._source.close()

    async def _fill(self) -> None:
        while True:
            self._drop_released()
            self._source.keep(self._plan)
            while chunk := self._next_chunk():
                self._begin(chunk)
            if self._window:
                oldest = self._window[0][1]
                await asyncio.wait({oldest}, timeout=LOOK_SECONDS)
                if oldest.done():
                    self._settle_oldest()
                    self._moved_at = time.monotonic()
                else:
                    self._check_peer()
            elif self._plan.is_over:
                return
            else:
                await self._source.news(self._plan)
                self._end(self._plan.take_given_up())

    def _begin(self, chunk: list[Read]) -> None:
        now = time.monotonic()
        if not self._window:
            self._moved_at = now
        self._window.append((chunk, asyncio.create_task(self._read(chunk))))
        self._pace.asked(now)

    def _next_chunk(self) -> list[Read]:
        """Empty while enough is on its way, or the source has no more yet."""
        is_full = len(self._window) >= (MAX_CHUNKS if self._has_begun else 1)
        return [] if is_full else self._plan.next_chunk(self._pace.chunk_bytes())

    def _drop_released(self) -> None:
        """What everybody here has let go of comes no further."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_SECONDS
        self._plan.drop_released(self._tools.store.is_pinned)
        self._end(self._plan.take_given_up())
        for chunk, reading in self._window:
            if all(read.piece.dropped for read in chunk):
                reading.cancel()

    def _check_peer(self) -> None:
        """Raises StoreUnavailable when nothing comes from a peer that does not answer any more
        either: what fills is in the way of who else has it."""
        is_silent = self._link.was_up and not self._link.is_up
        if is_silent and time.monotonic() - self._moved_at > STALLED_SECONDS:
            raise StoreUnavailable(f"it does not answer: {self._link.detail}")

    async def _stop_reads(self) -> None:
        """Their memory is let go before they are over, so it cannot be hurried."""
        for _, reading in self._window:
            reading.cancel()
        while self._window:
            try:
                await asyncio.wait({self._window[0][1]})
            except asyncio.CancelledError:
                continue  # the daemon stops: each read ends by itself, soon
            self._settle_oldest()

    async def _read(self, chunk: Sequence[Read]) -> Sums:
        """The checksums of the layers that came."""
        tools, num_bytes = self._tools, _num_bytes(chunk)
        await tools.flow.take(num_bytes, self._priority)
        try:
            return await tools.reads.read(
                self._requests(chunk),
                partial(self._verify, chunk),
                tools.verifiers,
                deadline=self._deadline,
                priority=self._priority,
            )
        except TransferError as error:
            logger.info("reads_refused peer=%s reason=%s", self._link.record.id, error)
            return [None] * len(chunk)
        finally:
            tools.flow.give_back(num_bytes)

    def _verify(self, chunk: Sequence[Read], statuses: Sequence[SliceStatus]) -> Sums:
        """In a thread: it takes as long as the copies it checks."""
        reasons = {status.reason for status in statuses if status.reason}
        if reasons:
            logger.info("reads_failed peer=%s reasons=%s", self._link.record.id, reasons)
        return [
            checksums([read.piece.memory[read.layer(extent)] for extent in read.extents])
            if status.state is SliceState.DONE
            else None
            for read, status in zip(chunk, statuses, strict=True)
        ]

    def _requests(self, chunk: Sequence[Read]) -> list[TransferRequest]:
        instance = self._link.record.instance
        segments = {read.remote.segment for read in chunk}
        addresses = {segment: SegmentAddress(instance, segment) for segment in segments}
        return [
            TransferRequest(Opcode.READ, read.local, addresses[read.remote.segment], read.offset)
            for read in chunk
        ]

    def _settle_oldest(self) -> None:
        chunk, reading = self._window.popleft()
        self._has_begun = True
        sums = _result(reading) or [None] * len(chunk)
        came = [read for read, found in zip(chunk, sums, strict=True) if found is not None]
        self._pace.came(_num_bytes(came), time.monotonic())
        settled = self._plan.settle(chunk, sums)
        self._tools.store.advance_runs(FILL_OWNER, settled.advanced)
        if settled.whole:
            self._commit(settled.whole)
        self._end(settled.ended)
        for read in settled.damaged:  # the peer looks for itself and drops what is damaged there
            self._tools.counters.corrupt_extents += 1
            self._link.tell(wire.ReportCorrupt(read.remote.slot, read.remote.generation))

    def _commit(self, pieces: Sequence[Piece]) -> None:
        slots, generations = _places(pieces)
        self._tools.store.commit(FILL_OWNER, slots, generations, [], time.monotonic())
        self._tools.counters.filled_entries += len(pieces)

    def _end(self, pieces: Sequence[Piece]) -> None:
        if pieces:
            slots, generations = _places(pieces)
            self._tools.store.abort(FILL_OWNER, slots, generations)
            dropped = sum(piece.dropped for piece in pieces)
            self._tools.counters.dropped_entries += dropped
            self._tools.counters.failed_entries += len(pieces) - dropped


def _places(pieces: Sequence[Piece]) -> tuple[list[int], list[int]]:
    return [piece.slot for piece in pieces], [piece.generation for piece in pieces]


def _num_bytes(chunk: Sequence[Read]) -> int:
    return sum(read.num_bytes for read in chunk)


def _result(reading: asyncio.Task[Sums]) -> Sums | None:
    if reading.cancelled():
        return None
    if reading.exception() is not None:
        logger.error("read_failed", exc_info=reading.exception())
        return None
    return reading.result()

"""NVMe → DRAM: fills read layer by layer, each layer of all their blocks before the next.

    reserve fills ──► reader finds them
    layer 0 of all ─┐
    layer 1 of all  ├─ at most BATCHES_AHEAD on their way; each that is there moves the watermark
    layer 2 of all ─┘
    last layer ──► commit

An extent that does not match its checksum is dropped by the disk tier; its fill ends, and whoever
waits for it hears so. So does a fill that somebody held and nobody does any more, as those from
other nodes do: what was given up, or is not loaded, is in the way of what is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ...nvme import ExtentRead, NvmeLocation, NvmeTier
from ...store import FILL_OWNER, Store
from ...types import PutStatus
from ..counters import TransportCounters

BATCHES_AHEAD = 3
MAX_BATCH_BYTES = 8 << 20
MAX_BATCH_READS = 256


class Fill:
    """One reservation that is read from disk. Its memory is the tier's while `reads` are under
    way, however it ends."""

    __slots__ = (
        "complete",
        "failed",
        "generation",
        "location",
        "offsets",
        "reads",
        "slot",
        "was_held",
        "watermark",
    )

    def __init__(self, slot: int, generation: int, location: NvmeLocation, offsets: list[int]):
        self.slot = slot
        self.generation = generation
        self.location = location
        self.offsets = offsets  # of each extent, within the entry
        self.complete: set[int] = set()  # extents read and not yet reported
        self.watermark = 0
        self.reads = 0
        self.failed = False
        self.was_held = False


class Promotion:
    """A run of fills of one lookup. Calls `ended` with each fill and whether it was committed."""

    def __init__(
        self,
        store: Store,
        nvme: NvmeTier,
        fills: Sequence[Fill],
        *,
        counters: TransportCounters,
        clock: Callable[[], float],
        ended: Callable[[Fill, bool], None],
    ) -> None:
        self._store = store
        self._nvme = nvme
        self._counters = counters
        self._clock = clock
        self._ended = ended
        self._batches = _layer_major(fills)
        self._refused: list[tuple[Fill, int]] | None = None  # a batch the tier had no room for
        self._fills = fills
        self._on_their_way = 0
        self._open = len(fills)

    @property
    def is_over(self) -> bool:
        return not self._open

    def pump(self) -> bool:
        """Begins reads. False: the tier's queue is full, call again later."""
        while self._on_their_way < BATCHES_AHEAD:
            batch = self._refused or next(self._batches, None)
            self._refused = None
            if batch is None:
                return True
            wanted = [(fill, extent) for fill, extent in batch if not fill.failed]
            if wanted and not self._read(wanted):
                self._refused = wanted
                return False
        return True

    def drop_released(self) -> None:
        """Ends fills that somebody held and nobody does any more. What nobody ever held comes for
        whoever asks next."""
        for fill in self._fills:
            if fill.failed or fill.watermark == fill.location.num_extents:
                continue
            if self._store.is_pinned(fill.slot, fill.generation):
                fill.was_held = True
            elif fill.was_held:
                fill.failed = True
                if not fill.reads:
                    self._end_failed(fill)

    def _read(self, batch: list[tuple[Fill, int]]) -> bool:
        requests = [self._request(fill, extent) for fill, extent in batch]
        for fill, _ in batch:
            fill.reads += 1
        self._on_their_way += 1
        if self._nvme.read(requests, lambda results: self._arrived(batch, results)):
            return True
        self._on_their_way -= 1
        for fill, _ in batch:
            fill.reads -= 1
        return False

    def _request(self, fill: Fill, extent: int) -> ExtentRead:
        start = fill.offsets[extent]
        length = fill.location.extent_lengths[extent]
        data = self._store.reserved_buffer(FILL_OWNER, fill.slot, fill.generation)
        wanted = data[start : start + length]
        return ExtentRead(fill.location, extent, wanted, lambda: not fill.failed)

    def _arrived(self, batch: list[tuple[Fill, int]], results: Sequence[bool]) -> None:
        self._on_their_way -= 1
        finished = []
        for (fill, extent), intact in zip(batch, results, strict=True):
            fill.reads -= 1
            if intact or not fill.failed:
                self._count(fill.location.extent_lengths[extent], intact)
            if intact:
                fill.complete.add(extent)
                if self._advance(fill):
                    finished.append(fill)
            else:
                fill.failed = True
            if fill.failed and not fill.reads:
                self._end_failed(fill)
        self._commit(finished)
        self.pump()

    def _count(self, num_bytes: int, intact: bool) -> None:
        if intact:
            self._counters.bytes_in += num_bytes
            self._counters.slices_done += 1
        else:
            self._counters.slices_failed += 1

    def _advance(self, fill: Fill) -> bool:
        """Reports what is complete in order; true when that is all."""
        while fill.watermark in fill.complete and not fill.failed:
            extent = fill.watermark
            checksum = fill.location.checksums[extent]
            self._store.advance(FILL_OWNER, [fill.slot], [fill.generation], extent, [checksum])
            fill.complete.discard(extent)
            fill.watermark += 1
        return fill.watermark == fill.location.num_extents

    def _commit(self, fills: list[Fill]) -> None:
        if not fills:
            return
        slots = [fill.slot for fill in fills]
        generations = [fill.generation for fill in fills]
        results = self._store.commit(FILL_OWNER, slots, generations, [], self._clock())
        for fill, result in zip(fills, results, strict=True):
            self._open -= 1
            stored = result.status is PutStatus.STORED
            if stored:
                self._store.mark_flushed(fill.slot, fill.generation)
            self._ended(fill, stored)

    def _end_failed(self, fill: Fill) -> None:
        self._store.abort(FILL_OWNER, [fill.slot], [fill.generation])
        self._open -= 1
        self._ended(fill, False)


def _layer_major(fills: Sequence[Fill]) -> Iterator[list[tuple[Fill, int]]]:
    """Batches of (fill, extent): extent 0 of every fill, then extent 1, …"""
    batch: list[tuple[Fill, int]] = []
    batch_bytes = 0
    for extent in range(max((fill.location.num_extents for fill in fills), default=0)):
        for fill in fills:
            if extent >= fill.location.num_extents:
                continue
            batch.append((fill, extent))
            batch_bytes += fill.location.extent_lengths[extent]
            if len(batch) >= MAX_BATCH_READS or batch_bytes >= MAX_BATCH_BYTES:
                yield batch
                batch, batch_bytes = [], 0
        if batch:
            yield batch
            batch, batch_bytes = [], 0

"""Opening: what lies in the directory becomes regions and an index that agree.

regions   opened by their headers (regions.py)
index     probed in a child; damaged: rebuilt; of another version: set aside and rebuilt
replay    batches of the log that the index has not seen; after a rebuild, all of them
agreement records of regions that are gone are dropped, files without a batch removed
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import lmdb

from moontide.transfer.types import PAGE_BYTES

from ..errors import Corrupt
from .committer import STRINGS, remove_namespace
from .identity import Identity
from .index import (
    CHUNK_RECORDS,
    DATA_FILE,
    LOCK_FILE,
    NvmeIndex,
    Position,
    Put,
    Remove,
    file_bytes,
)
from .log import changes_of
from .log_format import BatchHeader, RecordKind, UnknownVersion
from .probe import Probe, Verdict
from .region import Region
from .regions import INDEX_DIRECTORY, Regions
from .settings import NvmeSettings
from .storage import DISK_ERRORS, Storage

logger = logging.getLogger(__name__)
_REPLAY_CHANGES = 10_000
_BEHIND_ALL = (1 << 32, 0)


@dataclass(frozen=True, slots=True)
class Recovered:
    regions: Regions
    index: NvmeIndex
    sequence: int  # of the next batch
    rebuilt: bool


def recover(settings: NvmeSettings, storage: Storage, probe: Probe) -> Recovered:
    """Raises one of DISK_ERRORS when the directory cannot be used at all."""
    settings.directory.mkdir(parents=True, exist_ok=True)
    identity = Identity(settings.directory, storage)
    regions = Regions(settings, storage, identity)
    try:
        verdict = probe(settings.directory / INDEX_DIRECTORY)
        index, rebuilt = _open_index(settings, storage, regions, verdict, identity.tier)
    except BaseException:
        regions.close()
        raise
    try:
        regions.scan(index.tier())
        regions.try_io()
        if index.tier() is None:
            index.belong(regions.tier)
        replay = _Replay(regions, index, end=_known_end(identity, rebuilt=rebuilt))
        replay.run()
        identity.advance(replay.sequence)
        _agree(regions, index)
        _fit(regions, index)
    except BaseException:
        index.close()
        regions.close()
        raise
    return Recovered(regions, index, replay.sequence, rebuilt and bool(regions.live))


def _known_end(identity: Identity, *, rebuilt: bool) -> int | None:
    """How far the log must reach; None: nothing tells."""
    return 0 if identity.sequence is None and not rebuilt else identity.sequence


def _open_index(
    settings: NvmeSettings,
    storage: Storage,
    regions: Regions,
    verdict: Verdict,
    tier: bytes | None,
) -> tuple[NvmeIndex, bool]:
    """The index, and whether it is empty because the old one was of no use, or another tier's."""
    path = settings.directory / INDEX_DIRECTORY
    if verdict is Verdict.SOUND and file_bytes(path) <= settings.index_map_bytes:
        try:
            index = NvmeIndex(path, settings.index_map_bytes, storage)
            if tier is None or index.tier() in (None, tier):
                return index, False
            index.close()
            logger.warning("nvme_index_of_another_tier path=%s", path)
        except (lmdb.Error, UnknownVersion) as error:
            logger.warning("nvme_index_unusable reason=%s", error)
    elif verdict is Verdict.OTHER_VERSION:
        logger.warning("nvme_index_set_aside path=%s", path)
        regions.set_aside(path)
    elif verdict is Verdict.DAMAGED:
        logger.warning("nvme_index_damaged path=%s", path)
    if path.is_dir():
        for name in (DATA_FILE, LOCK_FILE):
            (path / name).unlink(missing_ok=True)
    elif path.exists() or path.is_symlink():
        regions.set_aside(path)
    return NvmeIndex(path, settings.index_map_bytes, storage), True


class _Replay:
    """Brings the index up to the end of the log. Where a batch is missing that an earlier process
    wrote, it may have removed something that stands before it: string entries from there are
    dropped. (A KV block is what its key says, whenever it was written.)"""

    def __init__(self, regions: Regions, index: NvmeIndex, *, end: int | None) -> None:
        """`end`: sequence that the log must have come to. None: what it holds may be out of date.
        A lost end leaves a gap in the sequences, for later rebuilds to see."""
        self._regions = regions
        self._index = index
        self._end = end
        self._start = self._position = index.position() or Position(0, 0, 1)
        self._changes: list[Put | Remove] = []
        self._expected = self._start.sequence if self._start.region else None
        self._lost: tuple[int, int] | None = None  # region, offset: behind the last missing batch
        self.sequence = self._start.sequence

    def run(self) -> None:
        for region in list(self._regions.live.values()):
            if region.id >= self._start.region:
                self._replay(region)
        if self._regions.live and (self._end is None or self.sequence < self._end):
            self._lost = _BEHIND_ALL
            self.sequence = max(self.sequence, self._end or 0) + 1
            self._position = self._position._replace(sequence=self.sequence)
        if self._lost is not None:
            logger.warning("nvme_batches_missing before region=%d offset=%d", *self._lost)
            _drop_strings(self._index, *self._lost)
            self._apply(self._position)

    def _replay(self, region: Region) -> None:
        """Afterwards the region ends with its last batch. What cannot be read counts as absent."""
        end = self._start.offset if region.id == self._start.region else PAGE_BYTES
        end = min(end, region.end)
        try:
            for batch in region.batches(end):
                if self._expected is not None and batch.sequence > self._expected:
                    self._lost = (region.id, batch.offset)
                self._expected = batch.sequence + 1
                self._take(batch)
                end = batch.offset + batch.num_bytes
        except DISK_ERRORS as error:
            logger.warning("nvme_region_unreadable path=%s reason=%s", region.file.path, error)
        self._position = Position(region.id, end, self.sequence)
        self._apply(self._position if self._lost is None else None)
        if end < region.end:
            region.cut(end)

    def _take(self, batch: BatchHeader) -> None:
        self.sequence = max(self.sequence, batch.sequence + 1)
        try:
            self._changes += changes_of(batch.records)
        except Corrupt as error:
            logger.warning("nvme_batch_skipped offset=%d reason=%s", batch.offset, error)
        for record in batch.records:
            if record.kind is RecordKind.CLEARED:
                self._apply(None)
                for _ in remove_namespace(self._index, record.body[1:].hex()):
                    pass
        if len(self._changes) >= _REPLAY_CHANGES:
            self._apply(None)

    def _apply(self, position: Position | None) -> None:
        while self._changes or position is not None:
            try:
                self._index.apply(self._changes, position)
            except lmdb.MapFullError:
                victim = self._regions.oldest()
                if victim is None:
                    raise
                logger.warning("nvme_index_full dropping=%d", victim.id)
                self._regions.remove(victim)
                purge(self._index, victim.id)
                continue
            self._changes = []
            return


def _agree(regions: Regions, index: NvmeIndex) -> None:
    placed = index.regions()
    for region_id in placed.keys() - regions.live.keys():
        purge(index, region_id)
    for region in list(regions.live.values()):
        if region.end <= PAGE_BYTES:
            regions.remove(region)
        else:
            region.grow(placed.get(region.id, 0))


def _fit(regions: Regions, index: NvmeIndex) -> None:
    """The capacity may have become smaller, and the disk fuller."""
    while regions.excess_bytes(index.file_bytes(), wanted=0) > 0:
        victim = regions.oldest()
        if victim is None:
            return
        regions.remove(victim)
        purge(index, victim.id)


def _drop_strings(index: NvmeIndex, region: int, offset: int) -> None:
    """Those whose bytes stand before this place in the log."""
    after = b""
    while True:
        records, after = index.scan(after, CHUNK_RECORDS)
        doomed = [
            Remove(record.entry)
            for record in records
            if record.namespace == STRINGS and (record.region, record.offset) < (region, offset)
        ]
        if doomed:
            index.apply(doomed, None)
        if not after:
            return


def purge(index: NvmeIndex, region: int) -> None:
    has_more = True
    while has_more:
        _, has_more = index.purge(region)

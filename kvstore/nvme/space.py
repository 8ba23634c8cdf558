"""Room on the tier: opens regions, evicts the oldest, carries hot entries over.

Before a region is opened there is room for it; right after, the oldest goes, and its entries that
were touched since they were written are written anew. Without that, a log forgets what it needs
most. Limits: capacity and free-space floor, 80 % of the index, the number of entries and regions.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from moontide.transfer import aligned_buffer, sync_directory
from moontide.transfer.types import PAGE_BYTES, align_up

from .counters import WriterCounters
from .index import CHUNK_RECORDS, NvmeIndex
from .log import Log
from .log_writer import CopiedItem, Item, Staged, batch_bytes, fitting
from .records import EntryRecord
from .region import Region
from .regions import Regions
from .settings import MAX_REGIONS, NvmeSettings
from .storage import DISK_ERRORS

logger = logging.getLogger(__name__)
MAX_INDEX_RATIO = 0.8
NEAR_INDEX_RATIO = 0.75
_MARGIN_BYTES = 256 << 10
_COPY_BYTES = 8 << 20
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Space:
    """Used by the writer's thread alone. Methods raise one of DISK_ERRORS; `removed` collects what
    was evicted until someone takes it."""

    def __init__(
        self,
        settings: NvmeSettings,
        regions: Regions,
        index: NvmeIndex,
        log: Log,
        *,
        comes_again: Callable[[bytes], bool],
        counters: WriterCounters,
    ) -> None:
        self._settings = settings
        self._comes_again = comes_again
        self._regions = regions
        self._index = index
        self._log = log
        self._counters = counters
        self._unpurged: list[int] = []
        self._index_bytes = index.file_bytes()  # when the last region was full
        self._growth = 0  # of the index while a region was filled, at most
        self._expected = 0  # entries of a region
        self._allowance = _Allowance(0, 0)
        self.removed: list[EntryRecord] = []

    def can_ever_fit(self, item: Item) -> bool:
        return batch_bytes([item]) <= self._settings.region_size - PAGE_BYTES

    def surely_fits(self, num_bytes: int, num_extents: int) -> bool:
        """`can_ever_fit` without an item: with gaps and records as long as they can be."""
        return num_bytes + 2 * (num_extents + 2) * PAGE_BYTES <= self._settings.region_size

    def fitting(self, items: Sequence[Item]) -> int:
        """How many of the leading items fit into the active region."""
        active = self._regions.active
        if active is None:
            return 0
        return fitting(items[: self._most_records(active, CHUNK_RECORDS)], self._regions.room)

    def fitting_into(self, staged: Staged, items: Sequence[Item]) -> int:
        """How many of the leading items fit into the batch that was staged last."""
        active = self._regions.active
        if active is not staged.region:
            return 0
        most = self._most_records(active, CHUNK_RECORDS - len(staged.records))
        return staged.fitting(items[:most], self._regions.room)

    def make_room(self, items: Sequence[Item]) -> int:
        """As `fitting`: at least one, which must be able to (`can_ever_fit`)."""
        count = self.fitting(items)
        if count == 0:
            self._next_region(batch_bytes(items[:1]))
            count = self.fitting(items)
        return count

    def switch(self) -> Region | None:
        """Opens the next region while batches of the active one are under way, and returns that: it
        is to be finished after them. None: something has to go first (`make_room`)."""
        former, size = self._regions.active, self._settings.region_size
        if former is None:
            return None
        self._expect(former)
        if self._lacks_room_for(2 * size + self._growth) or self._lacks_entries(0):
            return None
        try:
            self._regions.create()
        except DISK_ERRORS as error:
            self._counters.disk_errors += 1
            logger.warning("nvme_switch_failed region=%d reason=%s", former.id, error)
            return None
        self._begin_next()
        return former

    def is_near_limits(self, records: int) -> bool:
        """Whether `records` more may pass a limit other than the capacity of regions."""
        index = self._index
        return (
            index.num_entries() + records > self._settings.entry_limit
            or index.used_ratio() >= NEAR_INDEX_RATIO
            or self._regions.excess_bytes(index.file_bytes(), wanted=0) > -_MARGIN_BYTES
        )

    def seal(self) -> None:
        """The active region takes no more."""
        self._regions.seal()

    def finish(self, region: Region) -> None:
        """What `switch` returned has its last batch. Any thread."""
        self._regions.finish(region)

    def shrink(self) -> None:
        """Evicts until all limits hold."""
        while self._is_over_limits():
            if self._regions.spare_bytes:
                self._regions.drop_spare()
                continue
            if self._regions.oldest() is None:
                self._regions.seal()
            victim = self._regions.oldest()
            if victim is None:
                return
            self._evict(victim)

    def remove_all(self) -> int:
        """Every region goes, and with them all entries; how many."""
        self._regions.seal()
        staying = [
            region.file.path.name
            for region in list(self._regions.live.values())
            if not self._regions.remove(region)
        ]
        if not self._regions.drop_spare():
            staying.append("the spare region")
        self._unpurged.clear()
        count = self._index.remove_all()
        sync_directory(self._settings.directory)
        if staying:
            raise OSError(errno.EIO, f"could not be removed: {' '.join(staying)}")
        return count

    def purge(self) -> None:
        """Takes what lay in removed regions out of the index."""
        while self._unpurged:
            gone, has_more = self._index.purge(self._unpurged[0])
            self.removed += gone
            self._counters.evictions += len(gone)
            if not has_more:
                self._unpurged.pop(0)

    def _next_region(self, needed: int) -> None:
        """Opens a region that can take a batch of `needed` bytes."""
        size = self._settings.region_size
        former = self._regions.active
        if former is not None:
            self._expect(former)
        self._regions.seal()
        while self._lacks_room_for(size):
            victim = self._regions.oldest()
            if victim is None:
                raise OSError(errno.ENOSPC, "no room for a region within capacity and floor")
            self._evict(victim)
        self._create()
        self._allowance.renew(size, size - PAGE_BYTES - needed, self._settings.region_records)
        while self._lacks_room_ahead() and (victim := self._regions.oldest()) is not None:
            self._carry_over(victim)
            self._unpurged.append(victim.id)
            self._regions.recycle(victim)
            self.purge()
            if self._regions.active is None:  # carrying over failed
                self._create()
        if former is not None:
            self._begin_next()

    def _begin_next(self) -> None:
        """Unless it would take the last room."""
        size = self._settings.region_size
        if self._regions.spare_bytes or not self._lacks_room_for(2 * size + self._growth):
            self._regions.begin_next()

    def _most_records(self, active: Region, most: int) -> int:
        return min(most, max(0, self._settings.region_records - active.next_ordinal))

    def _expect(self, former: Region) -> None:
        """The next region takes as many entries as this one, and the index grows meanwhile as much
        as it ever did."""
        index_bytes = self._index.file_bytes()
        grown = min(index_bytes - self._index_bytes, self._settings.region_size)
        self._growth = max(self._growth, grown)
        self._index_bytes = index_bytes
        self._expected = former.next_ordinal

    def _lacks_room_ahead(self) -> bool:
        """For what the active region will take, or for the next one."""
        active = self._regions.active
        taken = 0 if active is None else active.next_ordinal
        ahead = self._settings.region_size + self._growth
        return self._lacks_room_for(ahead) or self._lacks_entries(taken)

    def _lacks_entries(self, taken: int) -> bool:
        """Whether a region that has taken so many may bring more than the limit allows: an eighth
        more than the one before it."""
        expected = self._expected + self._expected // 8 - taken
        return self._index.num_entries() + expected > self._settings.entry_limit

    def _create(self) -> None:
        while True:
            try:
                self._regions.create()
                return
            except DISK_ERRORS as error:
                victim = self._regions.oldest()
                if victim is None or getattr(error, "errno", None) not in _DISK_FULL:
                    raise
                logger.warning("nvme_disk_full evicting=%d", victim.id)
                self._counters.disk_errors += 1
                self._evict(victim)

    def _lacks_room_for(self, num_bytes: int) -> bool:
        excess = self._regions.excess_bytes(self._index.file_bytes(), wanted=num_bytes)
        return excess > 0 or len(self._regions.live) >= MAX_REGIONS

    def _is_over_limits(self) -> bool:
        return (
            self._regions.excess_bytes(self._index.file_bytes(), wanted=0) > 0
            or self._index.used_ratio() >= MAX_INDEX_RATIO
            or self._index.num_entries() > self._settings.entry_limit
        )

    def _evict(self, region: Region) -> None:
        """Removes a region with all that is in it."""
        self._unpurged.append(region.id)
        self._regions.remove(region)
        self.purge()

    def _carry_over(self, region: Region) -> None:
        """Writes the hot entries of a region anew into the active one, as many as are allowed."""
        allowance = self._allowance
        try:
            for items in self._hot_items(region, allowance.num_records):
                carried = items[: fitting(items, allowance.num_bytes)]
                if carried:
                    self._log.commit(carried)
                    allowance.num_bytes -= batch_bytes(carried)
                    allowance.num_records -= len(carried)
                    self._counters.reinserted += len(carried)
                if len(carried) < len(items):
                    break
        except DISK_ERRORS as error:
            self._counters.disk_errors += 1
            logger.warning("nvme_carry_over_failed region=%d reason=%s", region.id, error)

    def _hot_items(self, region: Region, most: int) -> Iterator[list[Item]]:
        """Up to `most` entries that are to live on, in batches of about 8 MiB."""
        items: list[Item] = []
        num_bytes = 0
        for record in islice(self._hot_records(region), most):
            data = _stored_bytes(region, record)
            if items and (num_bytes + len(data) > _COPY_BYTES or len(items) == CHUNK_RECORDS):
                yield items
                items, num_bytes = [], 0
            items.append(CopiedItem(record, data))
            num_bytes += len(data)
        if items:
            yield items

    def _hot_records(self, region: Region) -> Iterator[EntryRecord]:
        """What was touched and does not come again by itself."""
        ordinals = region.hot_ordinals()
        for start in range(0, len(ordinals), CHUNK_RECORDS):
            for record in self._index.at(region.id, ordinals[start : start + CHUNK_RECORDS]):
                if not self._comes_again(record.entry):
                    yield record


@dataclass(slots=True)
class _Allowance:
    """What may be carried over: half of what is written, since each region that is opened adds
    half a region. What one does not need is left to those after it, up to a region: hot entries
    lie together."""

    num_bytes: int
    num_records: int

    def renew(self, region_bytes: int, most_bytes: int, region_records: int) -> None:
        """A region is opened that takes `most_bytes`, and at least one record besides."""
        self.num_bytes = min(self.num_bytes + region_bytes // 2, most_bytes)
        self.num_records = min(self.num_records + region_records // 2, region_records - 1)


def _stored_bytes(region: Region, record: EntryRecord) -> memoryview:
    """From the record's offset to the end of its last extent, as they lie in the file."""
    last = record.extents[-1]
    start = record.offset // PAGE_BYTES * PAGE_BYTES
    end = last.offset + last.stored_length
    buffer = aligned_buffer(align_up(end - start, PAGE_BYTES))
    region.file.read_into([buffer], start)
    return buffer[record.offset - start : end - start]

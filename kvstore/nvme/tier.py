"""The NVMe tier as its user sees it: calls on one thread, none of which waits for the disk."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence

from ..errors import InvalidRequest, StoreUnavailable
from .codec import Codec
from .committer import Committer
from .counters import CallCounters, ReaderCounters, WriterCounters
from .doubts import Doubts
from .hiding import Hiding
from .log import Log
from .log_writer import StoredItem
from .notices import Notices
from .operations import Clear, Drop, Flush, Operation, Outcome, Write
from .probe import Probe, probe
from .reader import Reader
from .recovery import Recovered, recover
from .settings import NvmeSettings
from .space import Space
from .storage import DISK_ERRORS, Storage
from .types import (
    Done,
    ExtentRead,
    NvmeEntry,
    NvmeLocation,
    NvmeStats,
    NvmeWrite,
    Post,
    ReadDone,
)
from .write_budget import DAY_SECONDS, WriteBudget
from .writer import Writer

logger = logging.getLogger(__name__)
_PAGE_RECORDS = 1000
_MAX_PENDING_EXTENTS = 1 << 14
Notify = Callable[[Sequence[NvmeEntry]], None]


def _utc_day() -> int:
    return int(time.time() // DAY_SECONDS)


class NvmeTier:
    """A cache of entries on one directory of a disk.

    All methods and callbacks run on the thread that opened it (the daemon's loop); none waits for
    the disk, `open` and `close` aside: the index is kept in memory, locked there if it may be
    (`residency.py`). A call that answers False was not taken: a bounded queue is full, its
    `done` is never called; retry later. Every `done` of a call that was taken runs exactly once.

    An entry is visible from the moment it is durable, and `on_stored` tells; it leaves by `drop`,
    `clear`, damage or eviction, and `on_removed` tells (after `clear` only of string entries). What
    a pending write, drop or clear names is not located. Disk errors are counted and fail the
    operation; the tier goes on."""

    @classmethod
    def open(
        cls,
        settings: NvmeSettings,
        *,
        post: Post,
        on_stored: Notify,
        on_removed: Notify,
        comes_again: Callable[[bytes], bool] = lambda _: False,
        storage: Storage | None = None,
        probe: Probe = probe,
        clock: Callable[[], float] = time.monotonic,
        today: Callable[[], int] = _utc_day,
    ) -> NvmeTier:
        """Recovers what the directory holds; whoever calls holds the lock on it. Blocks: about 30 s
        for 10^6 entries. What `comes_again` (asked on another thread) will be written anew, so it
        goes with its region, hot or not. `storage` and `probe` are the ways to the disk; `clock`
        (monotonic seconds) and `today` (days since 1970) those to the time, for the write budget.
        Raises StoreUnavailable when it cannot be used."""
        storage = storage or Storage()
        try:
            recovered = recover(settings, storage, probe)
            return cls(settings, recovered, post, on_stored, on_removed, comes_again, clock, today)
        except DISK_ERRORS as error:
            raise StoreUnavailable(
                f"the NVMe tier cannot use {settings.directory}: {error}; repair or free the disk, "
                "or give another directory"
            ) from error

    def __init__(
        self,
        settings: NvmeSettings,
        recovered: Recovered,
        post: Post,
        on_stored: Notify,
        on_removed: Notify,
        comes_again: Callable[[bytes], bool],
        clock: Callable[[], float],
        today: Callable[[], int],
    ) -> None:
        """Use `open`."""
        self._clock = clock
        self._today = today
        self._budget = WriteBudget(
            bytes_per_second=settings.write_rate, bytes_per_day=settings.write_daily
        )
        self._settings = settings
        self._regions = recovered.regions
        self._index = recovered.index
        self._rebuilt = recovered.rebuilt
        self._post = post
        self._on_stored = on_stored
        self._on_removed = on_removed
        self._calls = CallCounters()
        self._writes = WriterCounters()
        self._reads = ReaderCounters()
        self._hiding = Hiding()
        self._doubts = Doubts()
        self._log = Log(
            self._regions,
            self._index,
            sequence=recovered.sequence,
            counters=self._writes,
            today=today,
        )
        self._space = Space(
            settings,
            self._regions,
            self._index,
            self._log,
            comes_again=comes_again,
            counters=self._writes,
        )
        self._writer = self._make_writer()
        self._reader = Reader(
            num_threads=settings.num_readers,
            max_extents=_MAX_PENDING_EXTENTS,
            on_damaged=lambda location: post(lambda: self._drop_damaged(location)),
            counters=self._reads,
        )

    def locate(self, entries: Sequence[bytes]) -> list[NvmeLocation | None]:
        """Where each entry lies; None: a miss."""
        try:
            found = self._index.find(entries)
        except DISK_ERRORS as error:
            self._calls.disk_errors += 1
            logger.error("nvme_disk_error action=locate reason=%s", error)
            found = [None] * len(entries)
        live, hides = self._regions.live, self._hiding.hides
        return [None if r is None or r.region not in live or hides(r) else r for r in found]

    def strings_after(self, place: tuple[int, int], limit: int) -> list[NvmeLocation]:
        """String entries that stand after (region, ordinal) in the log, in order, among the next
        `limit` records."""
        region, ordinal = place
        records: list[NvmeLocation] = []
        while limit > 0 and (current := self._regions.live.get(region)) is not None:
            ordinals = range(ordinal + 1, min(ordinal + 1 + limit, current.num_records))
            records += self._at(region, ordinals)
            limit -= len(ordinals)
            region, ordinal = self._regions.after(region), -1
        hides = self._hiding.hides
        return [record for record in records if not record.namespace and not hides(record)]

    def holds(self, entries: Sequence[bytes]) -> list[bool]:
        """Whether each entry lies here. As `locate`, but quicker: a damaged record counts."""
        if self._hiding.hides_by_generation:
            return [location is not None for location in self.locate(entries)]
        live, pending = self._regions.live, self._hiding.is_pending
        return [
            place is not None and place[0] in live and not pending(entry)
            for entry, place in zip(entries, self._places(entries), strict=True)
        ]

    def write(self, write: NvmeWrite, done: Done) -> bool:
        """Stores an entry, replacing one of that name. `done(False)`: it was not stored (disk error
        or larger than a region); the one it should have replaced may then be located again."""
        if not self._submit(Write(write, done)):
            self._calls.refused_writes += 1
            return False
        return True

    def may_write(self, num_bytes: int) -> bool:
        """Whether the write budget allows an entry of `num_bytes` now; asking for another one
        later may help. `write` itself takes whatever it is given."""
        if not self._budget.is_limited:
            return True
        self._budget.observe(self._writes.bytes_written, self._clock())
        allowed = self._budget.allows(
            num_bytes,
            pending_bytes=self._writer.pending_bytes,
            written_today=self._log.written.on(self._today()),
        )
        self._calls.put_off += not allowed
        return allowed

    def can_ever_fit(self, write: NvmeWrite) -> bool:
        """False: a region is too small for it."""
        num_bytes = sum([extent.nbytes for extent in write.extents])
        return self._space.surely_fits(num_bytes, len(write.extents)) or self._space.can_ever_fit(
            StoredItem(write, None)
        )

    def may_return(self, entries: Sequence[bytes]) -> list[bool]:
        """Which of these a later start might find here, unless they are dropped: what is located,
        what is being written or dropped, and what failed on the way in or out."""
        pending, doubts = self._hiding.is_pending, self._doubts
        return [
            is_held or pending(entry) or entry in doubts
            for entry, is_held in zip(entries, self.holds(entries), strict=True)
        ]

    def read(self, requests: Sequence[ExtentRead], done: ReadDone) -> bool:
        """Brings extents in; `done` gets one result each. True: the destination holds the extent,
        verified. False: it holds anything; the entry was damaged (and is dropped), has gone, or
        was not wanted any more."""
        for location, extent, destination, _ in requests:
            if destination.nbytes != location.extent_lengths[extent]:
                raise InvalidRequest(
                    f"destination of {destination.nbytes} bytes for extent {extent} of "
                    f"{location.extent_lengths[extent]}"
                )
        for region, ordinal in {(r.location.region, r.location.ordinal) for r in requests}:
            self._touch(region, ordinal)
        return self._reader.submit(
            requests, self._regions.live, lambda results: self._post(lambda: done(results))
        )

    def drop(self, entries: Sequence[bytes], done: Done) -> bool:
        """Removes entries; absent ones are fine. They are not located from now on; `done` comes
        once that is durable. `done(False)`: only until the process ends."""
        return self._submit(Drop(list(entries), done))

    def clear(self, namespace: str | None, done: Done) -> bool:
        """Removes all entries of a namespace (digest in hex; "": string entries), or everything
        (None). As `drop`."""
        return self._submit(Clear(namespace, done))

    def touch(self, entries: Sequence[bytes]) -> None:
        """Entries in use elsewhere: they are kept when their region goes. `read` does it itself."""
        for place in self._places(entries):
            if place is not None:
                self._touch(*place)

    def page(self, after: bytes, limit: int) -> tuple[list[NvmeLocation], bytes]:
        """Some of the entries, in the index's order, and what to give as `after` for those that
        follow (b"" at first; b"" back: that was all)."""
        records, after = self._index.scan(after, limit)
        live = self._regions.live
        return [r for r in records if r.region in live and not self._hiding.hides(r)], after

    def entries(self) -> Iterator[tuple[str, list[bytes]]]:
        """All entries, some hundred at a time, each group of one namespace. What comes and goes
        meanwhile may be missing or there."""
        after = b""
        while True:
            records, after = self.page(after, _PAGE_RECORDS)
            groups: dict[str, list[bytes]] = {}
            for record in records:
                groups.setdefault(record.namespace, []).append(record.entry)
            yield from groups.items()
            if not after:
                return

    def flush(self, done: Done) -> bool:
        """`done` once all that was taken before is durable; True if all of it succeeded since the
        last flush."""
        return self._submit(Flush(done))

    def stats(self) -> NvmeStats:
        index_bytes = self._index.file_bytes()
        writes, reads, calls = self._writes, self._reads, self._calls
        today = self._log.written.on(self._today())
        return NvmeStats(
            capacity_bytes=self._settings.capacity_bytes,
            used_bytes=self._regions.used_bytes(index_bytes),
            index_bytes=index_bytes,
            regions=len(self._regions.live),
            entries=self._index.num_entries(),
            pending_writes=self._writer.pending,
            pending_reads=self._reader.pending,
            evictions=writes.evictions,
            reinserted=writes.reinserted,
            removals=writes.removals,
            bytes_in=writes.bytes_in,
            bytes_written=writes.bytes_written,
            bytes_written_today=today,
            bytes_left_today=self._budget.left_today(today),
            writes_put_off=calls.put_off,
            bytes_out=reads.bytes_out,
            corrupt=reads.corrupt,
            disk_errors=writes.disk_errors + reads.disk_errors + calls.disk_errors,
            refused_writes=calls.refused_writes,
            failed_writes=writes.failed_writes,
            io="posix-direct" if self._regions.is_direct() else "posix-buffered",
            index_rebuilt=self._rebuilt,
            foreign_files=tuple(self._regions.foreign),
            set_aside_files=tuple(self._regions.set_aside_names),
        )

    def close(self, timeout_s: float) -> None:
        """Blocks until what is queued is durable, at most so long; the rest fails. Call it once;
        outstanding `done`s still go through `post`. No other call may follow."""
        deadline = time.monotonic() + timeout_s
        writer_ended = self._writer.close(timeout_s)
        readers_ended = self._reader.close(max(1.0, deadline - time.monotonic()))
        if readers_ended and writer_ended:
            self._regions.close()
            self._index.close()
        else:  # a thread hangs in the disk: its files end with the process
            logger.error("nvme_close_late timeout_s=%s", timeout_s)

    def _make_writer(self) -> Writer:
        notices = Notices(self._post, self._publish)
        committer = Committer(
            self._space,
            self._log,
            self._index,
            codec=Codec() if self._settings.compression == "auto" else None,
            doubts=self._doubts,
            publish=notices.put,
            counters=self._writes,
        )
        return Writer(
            committer,
            notices.put,
            max_operations=self._settings.queue_entries,
            max_bytes=self._settings.queue_bytes,
        )

    def _submit(self, operation: Operation) -> bool:
        if not self._writer.submit(operation):
            return False
        self._hiding.begin(operation)
        return True

    def _places(self, entries: Sequence[bytes]) -> list[tuple[int, int] | None]:
        try:
            return self._index.places(entries)
        except DISK_ERRORS as error:
            self._calls.disk_errors += 1
            logger.error("nvme_disk_error action=places reason=%s", error)
            return [None] * len(entries)

    def _at(self, region: int, ordinals: Sequence[int]) -> list[NvmeLocation]:
        try:
            return self._index.at(region, ordinals)
        except DISK_ERRORS as error:
            self._calls.disk_errors += 1
            logger.error("nvme_disk_error action=at reason=%s", error)
            return []

    def _touch(self, region_id: int, ordinal: int) -> None:
        region = self._regions.live.get(region_id)
        if region is not None:
            region.touch(ordinal)

    def _drop_damaged(self, location: NvmeLocation) -> None:
        """A full queue does not matter: the next read finds the damage again."""
        self._submit(Drop([location.entry], _ignore, (location.region, location.ordinal)))

    def _publish(self, outcome: Outcome) -> None:
        for operation, is_good in outcome.results:
            self._hiding.end(operation, is_durable=is_good, next_sequence=outcome.next_sequence)
        if outcome.removed:
            self._on_removed(outcome.removed)
        if outcome.stored:
            self._on_stored(outcome.stored)
        for operation, is_good in outcome.results:
            operation.done(is_good)


def _ignore(_: bool) -> None:
    pass

"""Log and index together: a batch is stored when both have it.

The log is the truth. When the index cannot follow (disk full), the position recorded in it stays
where it is, and the next start replays the log from there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .counters import WriterCounters
from .index import NvmeIndex, Position, Put, Remove
from .log_format import LogRecord, RecordKind
from .log_writer import Item, Staged, seal_batch, stage_batch
from .records import EntryRecord
from .regions import Regions
from .staging import Stage
from .storage import DISK_ERRORS


class Log:
    """Used by the writer's thread, but for `seal`, which one other thread may run meanwhile, and
    `written`, which any may read: bytes written on the current day (`today` numbers it).
    `next_sequence` numbers the batch that is sealed next."""

    def __init__(
        self,
        regions: Regions,
        index: NvmeIndex,
        *,
        sequence: int,
        counters: WriterCounters,
        today: Callable[[], int],
    ) -> None:
        self._regions = regions
        self._index = index
        self.next_sequence = self._upcoming = sequence
        self._counters = counters
        self._stage = Stage()
        self._today = today
        self.written = index.written()
        self.index_is_behind = False

    def commit(self, items: Sequence[Item]) -> tuple[list[EntryRecord], list[EntryRecord]]:
        """Makes a batch durable in the active region, which has room for it, and then part of the
        index. Returns what is now stored, and what was removed on demand. Raises one of
        DISK_ERRORS: then nothing of the batch is in the index. No other batch is under way."""
        self._upcoming = self.next_sequence
        try:
            return self.seal(self.stage(items))
        except DISK_ERRORS:
            self._regions.seal()
            raise

    def stage(self, items: Sequence[Item]) -> Staged:
        """Writes the extents of a batch to the active region, which has room for it, while the one
        before may still be sealed. Raises one of DISK_ERRORS: then nothing may be appended to the
        region again."""
        region = self._regions.active
        assert region is not None
        staged = stage_batch(
            region, items, self._upcoming, stage=self._stage, room=self._regions.room
        )
        self._upcoming += 1
        return staged

    def add(self, staged: Staged, items: Sequence[Item]) -> None:
        """As `stage`, to the batch that was staged last and is not being sealed (`Staged.fitting`).
        Raises as `stage`: then that batch is as it was."""
        staged.add(items, self._stage)

    def seal(self, staged: Staged) -> tuple[list[EntryRecord], list[EntryRecord]]:
        """The rest of `commit`. The batch before is sealed. Raises one of DISK_ERRORS: then nothing
        may be appended to its region again."""
        region = staged.region
        seal_batch(staged)
        self.next_sequence = staged.sequence + 1
        self._regions.identity.advance(self.next_sequence)
        self._counters.bytes_written += staged.num_bytes
        self.written = self.written.plus(staged.num_bytes, self._today())
        position = Position(region.id, region.end, self.next_sequence)
        changes = changes_of(staged.records)
        try:
            behind = self.index_is_behind
            removed = self._index.apply(changes, None if behind else position, self.written)
        except DISK_ERRORS:
            self.index_is_behind = True
            raise
        return [change.record for change in changes if isinstance(change, Put)], removed

    def forget_staged(self) -> None:
        """What was staged and not sealed never was."""
        self._upcoming = self.next_sequence

    def close(self) -> None:
        self._stage.close()


def changes_of(records: Sequence[LogRecord]) -> list[Put | Remove]:
    """What a batch's records change in the index, clears aside. Raises Corrupt."""
    return [
        Put(EntryRecord(record.body)) if record.kind is RecordKind.STORED else Remove(record.body)
        for record in records
        if record.kind is not RecordKind.CLEARED
    ]

"""Carries out groups of operations on log, index and space; the writer's thread around it decides
when. Disk errors become failed results and counts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from .assistant import Assistant
from .codec import Codec
from .counters import WriterCounters
from .doubts import Doubts
from .index import CHUNK_RECORDS, NvmeIndex, Remove
from .log import Log
from .log_writer import ClearedItem, Item, RemovedItem, Staged, StoredItem
from .operations import Clear, Drop, Flush, Operation, Outcome, Write
from .records import EntryRecord
from .region import Region
from .space import Space
from .storage import DISK_ERRORS
from .types import NvmeEntry

logger = logging.getLogger(__name__)
MAX_SEALING = 8
"""Batches whose extents are written while the first of them is made durable. The disk goes on
meanwhile, and whoever makes them durable may wait for the interpreter."""
Report = Callable[[Outcome], None]
Seal = Callable[[], tuple[list[EntryRecord], list[EntryRecord]]]
"""Makes a batch durable: what is now stored, and what was removed."""
STRINGS = ""
"""Namespace of string entries. They are no chain: what leaves is told one by one."""


class _Step(NamedTuple):
    """One record to log for an operation."""

    item: Item
    entry: bytes
    operation: Write | Drop


@dataclass(slots=True, eq=False)
class _Ahead:
    """A batch that is written, or being written; as a job, it is made durable by `seal`."""

    steps: list[_Step]
    staged: Staged
    report: Report
    seal: Callable[[_Ahead, bool], bool]

    def __call__(self, all_well: bool) -> bool:
        return self.seal(self, all_well)


class Committer:
    """All on the writer's thread. `codec` None: nothing is compressed. `publish` gets, ahead of a
    group's outcome, what need not wait for its end."""

    def __init__(
        self,
        space: Space,
        log: Log,
        index: NvmeIndex,
        *,
        codec: Codec | None,
        doubts: Doubts,
        publish: Callable[[Outcome], None],
        counters: WriterCounters,
    ) -> None:
        self._space = space
        self._log = log
        self._index = index
        self._codec = codec
        self._doubts = doubts
        self._publish = publish
        self._counters = counters
        self._sealer = Assistant("nvme-sealer", most=MAX_SEALING)
        self._ahead = 0  # records given to the sealer ever
        self._ended = 0  # records it is through with ever
        self._all_well = True  # since the last flush

    def run(self, operations: Sequence[Operation], outcome: Outcome) -> None:
        """Carries the operations out in order and notes in `outcome` what came of them, after all
        that `write` has begun."""
        self.drain()
        for group in _groups(operations):
            if isinstance(group, Clear):
                outcome.results.append((group, self._clear(group.namespace)))
            elif isinstance(group, Flush):
                outcome.results.append((group, self._all_well))
                self._all_well = True
            else:
                self._store_and_drop(group, outcome)
        self._keep_limits(outcome)
        outcome.next_sequence = self._log.next_sequence

    def tidy(self, outcome: Outcome) -> None:
        """Once in a while: what a failed eviction left in the index."""
        self.drain()
        try:
            self._space.purge()
        except DISK_ERRORS as error:
            self._note("tidy", error)
        self._keep_limits(outcome)

    def write(self, writes: Sequence[Write], report: Report) -> None:
        """As `run`, for writes alone, but the last batches of them may not be durable on return:
        `report` gets an outcome for each batch, from this thread or the sealer's."""
        if self._sealer.has_failed:
            self.drain()
        if self._is_near_limits(self._ahead - self._ended + len(writes)):
            outcome = Outcome()
            self.run(writes, outcome)
            report(outcome)
            return
        left = {id(write): write for write in writes}
        try:
            steps = self._steps(writes, set())
            while steps:
                items = [step.item for step in steps[:CHUNK_RECORDS]]
                count = self._add_ahead(steps, items) or self._write_ahead(steps, items, report)
                for step in steps[:count]:
                    left.pop(id(step.operation))
                del steps[:count]
        except DISK_ERRORS as error:
            self.drain()
            self._start_anew()
            self._note("write", error)
            self._doubts.raise_for([write.write.entry for write in left.values()])
        finally:
            self._tell_removed(report)
            if left:  # too large ones, too
                self.drain()
                self._counters.failed_writes += len(left)
                self._all_well = False
                report(Outcome([(write, False) for write in left.values()]))

    def drain(self) -> None:
        """Waits until all that `write` has begun is over."""
        if not self._sealer.drain():
            self._start_anew()

    def close(self) -> None:
        self.drain()
        self._sealer.close()
        self._log.close()

    def _room_ahead(self, items: Sequence[Item]) -> int:
        """As `Space.make_room`, without waiting where it can be."""
        count = self._space.fitting(items)
        if count:
            return count
        former = self._space.switch()
        if former is None:
            self.drain()
        elif not self._sealer.give(partial(self._finish_region, former)):
            self.drain()
            self._space.finish(former)
        return self._space.make_room(items)

    def _finish_region(self, region: Region, all_well: bool) -> bool:
        self._space.finish(region)
        return all_well

    def _add_ahead(self, steps: Sequence[_Step], items: Sequence[Item]) -> int:
        """Adds to the batch that the sealer comes to last, unless that is its next; how many. So
        whatever is written while one batch is made durable costs one sync and one transaction of
        the index."""
        last = self._sealer.keep_last()
        try:
            if not isinstance(last, _Ahead):
                return 0
            count = self._space.fitting_into(last.staged, items)
            if count:
                self._log.add(last.staged, items[:count])
                last.steps += steps[:count]
                self._ahead += count
            return count
        finally:
            self._sealer.let_go()

    def _write_ahead(self, steps: Sequence[_Step], items: Sequence[Item], report: Report) -> int:
        """Writes the extents of a batch while those before are being sealed, and leaves the rest to
        the sealer; anew, and without it, where one of those has failed. How many it took."""
        count = self._room_ahead(items)
        batch = list(steps[:count])
        self._tell_removed(report)
        staged = self._log.stage(items[:count])
        if self._sealer.give(_Ahead(batch, staged, report, self._seal_ahead)):
            self._ahead += count
            return count
        staged.wait()
        self.drain()
        outcome = Outcome()
        self._store_and_drop([step.operation for step in batch], outcome)
        outcome.next_sequence = self._log.next_sequence
        report(outcome)
        return count

    def _seal_ahead(self, ahead: _Ahead, all_well: bool) -> bool:
        """On the sealer's thread."""
        ahead.staged.wait()
        outcome = Outcome()
        is_good = False
        try:
            if all_well:
                is_good = self._seal(ahead.steps, partial(self._log.seal, ahead.staged), outcome)
        finally:
            self._ended += len(ahead.steps)
            outcome.results += [(step.operation, is_good) for step in ahead.steps]
            outcome.next_sequence = self._log.next_sequence
            if not is_good:
                self._all_well = False
                self._counters.failed_writes += len(ahead.steps)
            ahead.report(outcome)
        return is_good

    def _is_near_limits(self, records: int) -> bool:
        try:
            return self._space.is_near_limits(records)
        except DISK_ERRORS:
            return True

    def _tell_removed(self, report: Report) -> None:
        """Before what made it go is stored."""
        if self._space.removed:
            report(Outcome(removed=list(map(_entry, self._space.removed))))
            self._space.removed.clear()

    def _start_anew(self) -> None:
        """A batch has failed: its region takes no other."""
        self._log.forget_staged()
        self._space.seal()

    def _store_and_drop(self, group: Sequence[Write | Drop], outcome: Outcome) -> None:
        failed: set[int] = set()
        steps: list[_Step] = []
        start = 0
        try:
            steps = self._steps(group, failed)
            while start < len(steps):
                ahead = [step.item for step in steps[start : start + CHUNK_RECORDS]]
                batch = steps[start : start + self._space.make_room(ahead)]
                if not self._commit(batch, outcome):
                    failed.update(id(step.operation) for step in batch)
                start += len(batch)
        except DISK_ERRORS as error:
            self._note("make_room", error)
            left = [step.operation for step in steps[start:]] if steps else group
            failed.update(map(id, left))
            for operation in left:
                if isinstance(operation, Drop):
                    self._doubts.raise_for(operation.entries)
        for operation in group:
            is_good = id(operation) not in failed
            outcome.results.append((operation, is_good))
            if not is_good:
                self._all_well = False
                self._counters.failed_writes += isinstance(operation, Write)

    def _commit(self, batch: Sequence[_Step], outcome: Outcome) -> bool:
        items = [step.item for step in batch]
        return self._seal(batch, partial(self._log.commit, items), outcome)

    def _seal(self, batch: Sequence[_Step], seal: Seal, outcome: Outcome) -> bool:
        entries = [step.entry for step in batch]
        try:
            stored, removed = seal()
        except DISK_ERRORS as error:
            self._note("commit", error)
            self._doubts.raise_for(entries)
            return False
        self._doubts.settle(entries)
        outcome.stored += map(_entry, stored)
        outcome.removed += map(_entry, removed)
        self._counters.bytes_in += sum(record.length for record in stored)
        self._counters.removals += len(removed)
        return True

    def _steps(self, group: Sequence[Write | Drop], failed: set[int]) -> list[_Step]:
        """Records to log; too large entries are `failed`, absent ones need no removal."""
        steps: list[_Step] = []
        written: set[bytes] = set()
        for operation in group:
            if isinstance(operation, Write):
                item = StoredItem(operation.write, self._codec)
                if self._space.can_ever_fit(item):
                    steps.append(_Step(item, operation.write.entry, operation))
                    written.add(operation.write.entry)
                else:
                    failed.add(id(operation))
            else:
                steps += [
                    _Step(RemovedItem(entry), entry, operation)
                    for entry in self._present(operation, written)
                ]
        return steps

    def _present(self, drop: Drop, written: set[bytes]) -> Iterator[bytes]:
        for entry, record in zip(drop.entries, self._index.find(drop.entries), strict=True):
            if drop.at is not None:
                is_meant = record is not None and (record.region, record.ordinal) == drop.at
                if is_meant and entry not in written:
                    yield entry
            elif record is not None or entry in written or entry in self._doubts:
                yield entry

    def _clear(self, namespace: str | None) -> bool:
        try:
            if namespace is None:
                self._counters.removals += self._space.remove_all()
                self._space.removed.clear()
                self._doubts.settle_all()
            else:
                self._clear_namespace(namespace)
        except DISK_ERRORS as error:
            self._note("clear", error)
            return False
        return True

    def _clear_namespace(self, namespace: str) -> None:
        item = ClearedItem(namespace)
        self._space.make_room([item])
        self._log.commit([item])
        for records in remove_namespace(self._index, namespace):
            self._counters.removals += len(records)
            if namespace == STRINGS:
                self._publish(Outcome(removed=list(map(_entry, records))))

    def _keep_limits(self, outcome: Outcome) -> None:
        try:
            self._space.shrink()
        except DISK_ERRORS as error:
            self._note("shrink", error)
        outcome.removed += map(_entry, self._space.removed)
        self._space.removed.clear()

    def _note(self, action: str, error: Exception) -> None:
        self._counters.disk_errors += 1
        self._all_well = False
        logger.error("nvme_disk_error action=%s reason=%s", action, error)


def remove_namespace(index: NvmeIndex, namespace: str) -> Iterator[list[EntryRecord]]:
    """Takes a namespace out of the index, a transaction for each CHUNK_RECORDS looked at; yields
    what each took."""
    after = b""
    while True:
        records, after = index.scan(after, CHUNK_RECORDS)
        doomed = [Remove(record.entry) for record in records if record.namespace == namespace]
        if doomed:
            yield index.apply(doomed, None)
        if not after:
            return


def _entry(record: EntryRecord) -> NvmeEntry:
    return NvmeEntry(record.namespace, record.entry, record.parent, record.length)


def _groups(operations: Sequence[Operation]) -> Iterator[list[Write | Drop] | Clear | Flush]:
    """Neighbouring writes and drops together, everything else alone."""
    group: list[Write | Drop] = []
    for operation in operations:
        if isinstance(operation, Write | Drop):
            group.append(operation)
            continue
        if group:
            yield group
        group = []
        yield operation
    if group:
        yield group

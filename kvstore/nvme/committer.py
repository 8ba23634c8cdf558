"""Carries out groups of operations on log, index and space; the writer's thread around it decides
when. Disk errors become failed results and counts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from .codec import Codec
from .counters import WriterCounters
from .doubts import Doubts
from .index import CHUNK_RECORDS, NvmeIndex, Remove
from .log import Log
from .log_writer import ClearedItem, Item, RemovedItem, StoredItem
from .operations import Clear, Drop, Flush, Operation, Outcome, Write
from .records import EntryRecord
from .space import Space
from .storage import DISK_ERRORS
from .types import NvmeEntry

_log = logging.getLogger(__name__)
STRINGS = ""
"""Namespace of string entries. They are no chain: what leaves is told one by one."""


class _Step(NamedTuple):
    """One record to log for an operation."""

    item: Item
    entry: bytes
    operation: Write | Drop


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
        self._all_well = True  # since the last flush

    def run(self, operations: Sequence[Operation], outcome: Outcome) -> None:
        """Carries the operations out in order and notes in `outcome` what came of them."""
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
        """Once in a while: slots of dead readers, what a failed eviction left in the index."""
        try:
            self._index.check_readers()
            self._space.purge()
        except DISK_ERRORS as error:
            self._note("tidy", error)
        self._keep_limits(outcome)

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
        entries = [step.entry for step in batch]
        try:
            stored, removed = self._log.commit([step.item for step in batch])
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
        _log.error("nvme_disk_error action=%s reason=%s", action, error)


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

"""Appends batches to a region: the extents first, then the header, then one sync. The extents of
the next batch may be written before the header of the one ahead of it, and while that waits for its
turn, more may be added to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from moontide.transfer import aligned_buffer, checksum
from moontide.transfer.types import PAGE_BYTES, align_up

from .codec import Codec
from .log_format import (
    BatchHeader,
    LogRecord,
    RecordKind,
    batch_header_bytes,
    encode_batch_header,
)
from .records import (
    EntryRecord,
    Names,
    Place,
    encode_record,
    extent_alignment,
    record_bytes,
)
from .region import Region
from .staging import AsideWrite, Stage
from .types import NvmeWrite

BYTES_A_SPARE_PAGE = 4 << 20
"""For so much that a batch has at first, its header gets a page more than it needs, for records of
what is added later."""


class Item(Protocol):
    """One record of a batch to be."""

    kind: RecordKind
    body_bytes: int

    def most_end(self, start: int) -> int:
        """Where its extents end at most, if those before it end at `start` at most."""
        ...

    def append(self, place: Place, stage: Stage) -> bytes:
        """Stages the extents, from `place.offset` at the earliest; returns the record's body."""
        ...


class StoredItem:
    """A new entry."""

    kind = RecordKind.STORED

    def __init__(self, write: NvmeWrite, codec: Codec | None) -> None:
        """`codec` None: never compress."""
        self.write = write
        self._codec = codec
        self._names = Names(bytes.fromhex(write.namespace), write.parent, write.entry)
        self._lengths = [extent.nbytes for extent in write.extents]
        self.body_bytes = record_bytes(self._names, self._lengths)

    def most_end(self, start: int) -> int:
        """Compressed ones are shorter and stand closer."""
        for length in self._lengths:
            start = align_up(start, extent_alignment(length, length)) + length
        return start

    def append(self, place: Place, stage: Stage) -> bytes:
        element_bytes = self.write.element_bytes
        extents = [memoryview(extent).cast("B") for extent in self.write.extents]
        codec = self._codec
        if codec is not None and not codec.gains(extents, element_bytes):
            codec = None
        stored_lengths, checksums = [], []
        end = place.offset
        for extent, told in zip(extents, self.write.checksums, strict=True):
            checksums.append(told or checksum(extent))
            data = extent if codec is None else codec.compress(extent, element_bytes)
            end = align_up(end, extent_alignment(len(data), len(extent)))
            stage.put(end, data)
            stored_lengths.append(len(data))
            end += len(data)
        return encode_record(
            place,
            self._names,
            element_bytes=element_bytes,
            stored_lengths=stored_lengths,
            lengths=self._lengths,
            checksums=checksums,
        )


class CopiedItem:
    """An entry that lives on, with the bytes it has in its old region."""

    kind = RecordKind.STORED

    def __init__(self, record: EntryRecord, data: memoryview) -> None:
        """`data`: from the record's offset to the end of its last extent."""
        self._record = record
        self._data = data
        self._step = record.alignment
        self.body_bytes = len(record.body)

    def most_end(self, start: int) -> int:
        return self._offset_from(start) + len(self._data)

    def append(self, place: Place, stage: Stage) -> bytes:
        offset = self._offset_from(place.offset)
        stage.put(offset, self._data)
        return self._record.moved(place._replace(offset=offset)).body

    def _offset_from(self, start: int) -> int:
        """The first that leaves the extents aligned."""
        return start + (self._record.offset - start) % self._step


class RemovedItem:
    kind = RecordKind.REMOVED

    def __init__(self, entry: bytes) -> None:
        self._entry = entry
        self.body_bytes = len(entry)

    def most_end(self, start: int) -> int:
        return start

    def append(self, place: Place, stage: Stage) -> bytes:
        return self._entry


class ClearedItem:
    kind = RecordKind.CLEARED

    def __init__(self, namespace: str) -> None:
        self._body = b"n" + bytes.fromhex(namespace)
        self.body_bytes = len(self._body)

    def most_end(self, start: int) -> int:
        return start

    def append(self, place: Place, stage: Stage) -> bytes:
        return self._body


@dataclass(slots=True)
class Staged:
    """A batch whose extents are written, or being written `aside`, and that no header tells of
    yet."""

    region: Region
    sequence: int
    offset: int
    header_bytes: int
    num_bytes: int
    records: list[LogRecord] = field(default_factory=list)
    aside: list[AsideWrite] = field(default_factory=list)

    def fitting(self, items: Sequence[Item], room: int) -> int:
        """How many of the leading items can be added, `room` bytes being left of the region."""
        bodies = sum([len(record.body) for record in self.records])
        end = 0
        for count, item in enumerate(items):
            bodies += item.body_bytes
            end = item.most_end(end)
            header_bytes = batch_header_bytes(len(self.records) + count + 1, bodies)
            if header_bytes > self.header_bytes or align_up(end, PAGE_BYTES) > room:
                return count
        return len(items)

    def add(self, items: Sequence[Item], stage: Stage) -> None:
        """Writes the extents of items that fit at the region's tip, where the batch ends. Raises
        one of DISK_ERRORS: then nothing of them is being written, the batch is as it was, and
        nothing may be appended to the region again."""
        region = self.region
        stage.begin(region.file, self.offset + self.num_bytes)
        records = []
        try:
            for ordinal, item in enumerate(items, region.next_ordinal):
                place = Place(region.id, ordinal, stage.end, self.sequence)
                records.append(LogRecord(item.kind, item.append(place, stage)))
            aside = stage.finish()
        except BaseException:
            stage.give_up()
            raise
        self.records += records
        self.aside += aside
        self.num_bytes = stage.end - self.offset
        region.tip = stage.end
        region.next_ordinal += len(items)

    def wait(self) -> Exception | None:
        """Until none of it is being written; what went wrong."""
        met = [write.wait() for write in self.aside]
        return next((error for error in met if error is not None), None)


def batch_bytes(items: Sequence[Item]) -> int:
    """The most a batch of these items takes in a region."""
    bodies, end = _extent_of(items)
    return batch_header_bytes(len(items), bodies) + align_up(end, PAGE_BYTES)


def fitting(items: Sequence[Item], room: int) -> int:
    """How many of the leading items make a batch of at most `room` bytes."""
    bodies = end = 0
    for count, item in enumerate(items):
        bodies += item.body_bytes
        end = item.most_end(end)
        if batch_header_bytes(count + 1, bodies) + align_up(end, PAGE_BYTES) > room:
            return count
    return len(items)


def stage_batch(
    region: Region, items: Sequence[Item], sequence: int, *, stage: Stage, room: int
) -> Staged:
    """Begins a batch at the region's tip, `room` bytes being left there. The items fit
    (`batch_bytes`). Raises as `Staged.add`."""
    bodies, end = _extent_of(items)
    least = batch_header_bytes(len(items), bodies)
    wanted = least + end // BYTES_A_SPARE_PAGE * PAGE_BYTES
    header_bytes = max(least, min(wanted, room - align_up(end, PAGE_BYTES)))
    staged = Staged(region, sequence, region.tip, header_bytes, header_bytes)
    staged.add(items, stage)
    return staged


def seal_batch(staged: Staged) -> None:
    """Makes a batch durable; all before it in the region are. Raises one of DISK_ERRORS: then the
    region's end has not moved, and nothing may be appended to it again."""
    region = staged.region
    assert region.end == staged.offset
    if error := staged.wait():
        raise error
    header = encode_batch_header(
        BatchHeader(staged.sequence, staged.offset, staged.num_bytes, staged.records),
        region.nonce,
        staged.header_bytes,
    )
    buffer = aligned_buffer(len(header))
    buffer[:] = header
    region.file.write_from([buffer], region.end)
    region.file.sync()
    region.end += staged.num_bytes
    region.grow(region.num_records + len(staged.records))


def _extent_of(items: Sequence[Item]) -> tuple[int, int]:
    """Bytes of the items' records, and of their extents at most."""
    bodies = end = 0
    for item in items:
        bodies += item.body_bytes
        end = item.most_end(end)
    return bodies, end

"""Bytes of a region file.

    page 0     region header: magic, version, nonce, region id, xxh3-64
    batch      header: magic, nonce of the region, sequence, own offset, bytes of the batch, of the
               header, number of records, xxh3-64 over all of it; records: u8 kind, u32 length, body
               zeros up to a page
               the extents of the records
    batch      …

A batch's header is written after its extents, and the file is synced after both: a header that
passes its checksum means that the batch was written whole. The nonce keeps stored bytes from being
taken for a header; its first half names the tier, and so tells regions of another one. The index
can be rebuilt from the headers alone. Batches are numbered without gaps: one that is missing was
lost, and with it maybe the removal of something older.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from moontide.transfer.types import PAGE_BYTES, align_up

from ..errors import Corrupt

VERSION = 1
TIER_BYTES = 8
NONCE_BYTES = TIER_BYTES + 8
_REGION_MAGIC = b"MTREGION"
_BATCH_MAGIC = b"MTBATCH1"
_REGION = struct.Struct("<8sHH16sIQ")  # …, region id, checksum
_BATCH = struct.Struct("<8s16sQQQII")
_RECORD = struct.Struct("<BI")
_CHECKSUM_BYTES = 8


class UnknownVersion(Exception):
    """A region file of another format version: not ours to touch. Never leaves the tier."""


class RecordKind(enum.IntEnum):
    STORED = 1  # body: an entry record
    REMOVED = 2  # body: an entry id
    CLEARED = 3  # body: b"" for all, else b"n" + namespace; covers what stands before it


class LogRecord(NamedTuple):
    kind: RecordKind
    body: bytes


class RegionHeader(NamedTuple):
    region: int
    nonce: bytes

    @property
    def tier(self) -> bytes:
        return self.nonce[:TIER_BYTES]


class BatchHeader(NamedTuple):
    """`num_bytes` is the whole batch, header included; whole pages."""

    sequence: int
    offset: int
    num_bytes: int
    records: Sequence[LogRecord]


def encode_region_header(header: RegionHeader) -> bytes:
    head = _REGION.pack(_REGION_MAGIC, VERSION, 0, header.nonce, header.region, 0)
    head = head[:-_CHECKSUM_BYTES]
    return (head + _checksum(head)).ljust(PAGE_BYTES, b"\0")


def decode_region_header(page: bytes) -> RegionHeader:
    """Raises UnknownVersion, or Corrupt for anything that is no region header."""
    if len(page) < _REGION.size or page[:8] != _REGION_MAGIC:
        raise Corrupt("not a region file")
    _, version, _, nonce, region, _ = _REGION.unpack_from(page)
    if version != VERSION:
        raise UnknownVersion(f"region file of format version {version}; known: {VERSION}")
    head_bytes = _REGION.size - _CHECKSUM_BYTES
    if page[head_bytes : _REGION.size] != _checksum(page[:head_bytes]):
        raise Corrupt("the region header does not match its checksum")
    return RegionHeader(region, nonce)


def batch_header_bytes(num_records: int, body_bytes: int) -> int:
    """Size of a batch's header, padding included; `body_bytes` is the sum of its records'."""
    records = body_bytes + _RECORD.size * num_records
    return align_up(_BATCH.size + records + _CHECKSUM_BYTES, PAGE_BYTES)


def encode_batch_header(header: BatchHeader, nonce: bytes, size: int) -> bytes:
    """`size`: at least `batch_header_bytes`, in whole pages."""
    records = b"".join(
        part
        for record in header.records
        for part in (_RECORD.pack(record.kind, len(record.body)), record.body)
    )
    head = (
        _BATCH.pack(
            _BATCH_MAGIC,
            nonce,
            header.sequence,
            header.offset,
            header.num_bytes,
            size,
            len(header.records),
        )
        + records
    )
    return (head + _checksum(head)).ljust(size, b"\0")


def peek_batch_header(page: bytes, nonce: bytes, offset: int) -> int:
    """Header size that the first page of a batch at `offset` claims. Raises Corrupt."""
    if len(page) < _BATCH.size or page[:8] != _BATCH_MAGIC or page[8 : 8 + NONCE_BYTES] != nonce:
        raise Corrupt(f"no batch header at {offset}")
    _, _, _, at, _, size, _ = _BATCH.unpack_from(page)
    if at != offset or size % PAGE_BYTES or size == 0:
        raise Corrupt(f"no batch header at {offset}")
    return int(size)


def decode_batch_header(data: bytes) -> BatchHeader:
    """Raises Corrupt."""
    if len(data) < _BATCH.size:
        raise Corrupt(f"batch header of {len(data)} bytes")
    _, _, sequence, offset, num_bytes, size, num_records = _BATCH.unpack_from(data)
    position = _BATCH.size
    records = []
    try:
        for _ in range(num_records):
            kind, length = _RECORD.unpack_from(data, position)
            position += _RECORD.size
            records.append(LogRecord(RecordKind(kind), data[position : position + length]))
            position += length
    except (struct.error, ValueError) as error:
        raise Corrupt(f"batch header at {offset}: {error}") from error
    end = position + _CHECKSUM_BYTES
    if end > len(data) or data[position:end] != _checksum(data[:position]):
        raise Corrupt(f"the batch header at {offset} does not match its checksum")
    if num_bytes < size or num_bytes % PAGE_BYTES:
        raise Corrupt(f"the batch at {offset} claims {num_bytes} bytes")
    return BatchHeader(sequence, offset, num_bytes, records)


def _checksum(data: bytes) -> bytes:
    return xxh3_64_intdigest(data).to_bytes(_CHECKSUM_BYTES, "little")

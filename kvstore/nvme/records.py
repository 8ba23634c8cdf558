"""What the tier writes about entries: the same record in the log and in the index.

    u32 region   u32 ordinal   u64 offset   u64 sequence   u64 length
    u16 extents  u8 element    u8 flags     u8 namespace   u8 parent    u16 entry     (sizes)
    namespace, parent, entry id
    extent table: u32 stored length each, u64 xxh3-64 each, u32 raw length each (one, if all equal)

All little endian. `ordinal` numbers the records of a region. `sequence` numbers the batches of the
tier: it is the entry's generation, and stays when the entry moves. An extent that is stored raw and
has whole pages lies on a page; any other on 64 bytes. So a table of 12 bytes an extent gives all
positions.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from xxhash import xxh3_64_intdigest, xxh3_128_digest

from moontide.transfer.types import CACHE_LINE_BYTES, PAGE_BYTES, align_up

from ..errors import Corrupt

_HEAD = struct.Struct("<IIQQQHBBBBH")
_PLACE = struct.Struct("<II")  # its beginning
_SEAL_BYTES = 8
_EQUAL_LENGTHS = 1
MAX_EXTENTS = (1 << 16) - 1
MAX_EXTENT_BYTES = (1 << 32) - 1
MAX_ID_BYTES = 1200
MAX_NAME_BYTES = 255


class StoredExtent(NamedTuple):
    """Where one extent lies in its region file. Stored raw when both lengths are equal."""

    offset: int
    stored_length: int
    length: int
    checksum: int


class Place(NamedTuple):
    """Where in the log a record stands."""

    region: int
    ordinal: int
    offset: int
    sequence: int


class EntryRecord:
    """One stored entry. Immutable; the table is read when first asked for."""

    region: int
    ordinal: int
    offset: int  # in the region's file, of the first extent before its alignment
    sequence: int
    length: int  # raw bytes of all extents
    num_extents: int
    element_bytes: int
    _flags: int
    _namespace_bytes: int
    _parent_bytes: int
    _entry_bytes: int

    def __init__(self, body: bytes) -> None:
        """`body` passed its checksum. Raises Corrupt when it still is no record."""
        self.body = body
        try:
            (
                self.region,
                self.ordinal,
                self.offset,
                self.sequence,
                self.length,
                self.num_extents,
                self.element_bytes,
                self._flags,
                self._namespace_bytes,
                self._parent_bytes,
                self._entry_bytes,
            ) = _HEAD.unpack_from(body)
        except struct.error as error:
            raise Corrupt(f"entry record of {len(body)} bytes") from error
        if len(body) != self._table_start + _table_bytes(self.num_extents, self._flags):
            raise Corrupt(f"entry record of {len(body)} bytes does not fit its sizes")

    @property
    def namespace(self) -> str:
        """Digest in hex, "" for string entries."""
        return self.body[_HEAD.size : _HEAD.size + self._namespace_bytes].hex()

    @property
    def parent(self) -> bytes:
        start = _HEAD.size + self._namespace_bytes
        return self.body[start : start + self._parent_bytes]

    @property
    def entry(self) -> bytes:
        return self.body[self._table_start - self._entry_bytes : self._table_start]

    @cached_property
    def checksums(self) -> Sequence[int]:
        start = self._table_start + 4 * self.num_extents
        return memoryview(self.body)[start : start + 8 * self.num_extents].cast("Q")

    @cached_property
    def extent_lengths(self) -> Sequence[int]:
        """Raw length of each extent."""
        lengths = np.frombuffer(self.body, "<u4", offset=self._table_start + 12 * self.num_extents)
        values: list[int] = lengths.tolist()
        return values * self.num_extents if self._flags & _EQUAL_LENGTHS else values

    @cached_property
    def extents(self) -> Sequence[StoredExtent]:
        stored = np.frombuffer(self.body, "<u4", self.num_extents, self._table_start).tolist()
        offsets = extent_offsets(self.offset, stored, self.extent_lengths)
        return [
            StoredExtent(*values)
            for values in zip(offsets, stored, self.extent_lengths, self.checksums, strict=True)
        ]

    @property
    def alignment(self) -> int:
        """The entry may move by multiples of this without an extent losing its alignment."""
        return max(extent_alignment(part.stored_length, part.length) for part in self.extents)

    def moved(self, place: Place) -> EntryRecord:
        """The same entry at another place; its generation stays."""
        place = place._replace(sequence=self.sequence)
        return EntryRecord(
            _HEAD.pack(*place, *_HEAD.unpack_from(self.body)[4:]) + self.body[_HEAD.size :]
        )

    @property
    def _table_start(self) -> int:
        return _HEAD.size + self._namespace_bytes + self._parent_bytes + self._entry_bytes


class Names(NamedTuple):
    """What an entry is called."""

    namespace: bytes
    parent: bytes
    entry: bytes


def encode_record(
    place: Place,
    names: Names,
    *,
    element_bytes: int,
    stored_lengths: Sequence[int],
    lengths: Sequence[int],
    checksums: Sequence[int],
) -> bytes:
    """Body of an EntryRecord; its size depends on names and lengths alone (`record_bytes`)."""
    equal = len(set(lengths)) == 1
    head = _HEAD.pack(
        *place,
        sum(lengths),
        len(lengths),
        element_bytes,
        _EQUAL_LENGTHS if equal else 0,
        *map(len, names),
    )
    table = (
        np.array(stored_lengths, "<u4").tobytes()
        + np.array(checksums, "<u8").tobytes()
        + np.array(lengths[:1] if equal else lengths, "<u4").tobytes()
    )
    return b"".join((head, *names, table))


def record_size(body: bytes) -> tuple[int, int, int]:
    """(region, ordinal, size of the whole body) of a record of which `body` is the beginning."""
    region, ordinal, _, _, _, num_extents, _, flags, *names = _HEAD.unpack_from(body)
    return region, ordinal, _HEAD.size + sum(names) + _table_bytes(num_extents, flags)


def record_place(sealed: bytes) -> tuple[int, int]:
    """(region, ordinal) of a sealed record, unverified."""
    region, ordinal = _PLACE.unpack_from(sealed, _SEAL_BYTES)
    return region, ordinal


def record_bytes(names: Names, lengths: Sequence[int]) -> int:
    flags = _EQUAL_LENGTHS if len(set(lengths)) == 1 else 0
    return _HEAD.size + sum(map(len, names)) + _table_bytes(len(lengths), flags)


def extent_offsets(start: int, stored: Sequence[int], raw: Sequence[int]) -> list[int]:
    """Offset of each extent of an entry whose first may lie at `start` at the earliest."""
    offsets = []
    for stored_length, length in zip(stored, raw, strict=True):
        start = align_up(start, extent_alignment(stored_length, length))
        offsets.append(start)
        start += stored_length
    return offsets


def extent_alignment(stored_length: int, length: int) -> int:
    is_raw_pages = stored_length == length and length % PAGE_BYTES == 0
    return PAGE_BYTES if is_raw_pages else CACHE_LINE_BYTES


def index_key(entry: bytes) -> bytes:
    """Key of an entry in the index. Two entries with one key replace each other: a miss, never
    wrong bytes, since the record names its entry."""
    return xxh3_128_digest(entry)


def seal(key: bytes, body: bytes) -> bytes:
    """`body` behind its checksum, which covers the key it stands under."""
    return xxh3_64_intdigest(key + body).to_bytes(_SEAL_BYTES, "little") + body


def unseal(key: bytes, value: bytes) -> bytes:
    """Raises Corrupt."""
    body, told = value[_SEAL_BYTES:], value[:_SEAL_BYTES]
    if len(told) < _SEAL_BYTES or xxh3_64_intdigest(key + body) != int.from_bytes(told, "little"):
        raise Corrupt(f"index record {key.hex()} does not match its checksum")
    return body


def _table_bytes(num_extents: int, flags: int) -> int:
    raw_lengths = min(1, num_extents) if flags & _EQUAL_LENGTHS else num_extents
    return 12 * num_extents + 4 * raw_lengths

"""The index of the NVMe tier: entry → record, in one LMDB environment.

    entries    xxh3-128 of the entry id → checksum, record (its first 2 KiB)
    overflow   region, ordinal, part    → checksum, the rest of a long extent table
    placed     region, ordinal          → key of the entry whose record stands there
    meta       format, tier, position   → version; which tier; up to where in the log it has come
               written                  → bytes written to the tier on which day

It can always be rebuilt from the regions. One thread writes; the thread that uses the tier reads.
Methods raise lmdb.Error when the disk fails.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import lmdb

from ..errors import Corrupt
from .log_format import UnknownVersion
from .records import EntryRecord, index_key, record_place, record_size, seal, unseal
from .residency import ResidentFile
from .storage import Storage
from .write_budget import DayCount

VERSION = 1
DATA_FILE, LOCK_FILE = "data.mdb", "lock.mdb"
MAX_RECORD_BYTES = 2048
CHUNK_RECORDS = 1000
_PART_BYTES = MAX_RECORD_BYTES - 8
_PLACE = struct.Struct(">II")
_PART = struct.Struct(">IIH")
_POSITION = struct.Struct("<IQQ")
_FORMAT = struct.Struct("<I")
_WRITTEN = struct.Struct("<IQ")
_DATABASES = (b"entries", b"overflow", b"placed", b"meta")


class Position(NamedTuple):
    """All batches before `offset` of `region`, and all earlier regions, are in the index."""

    region: int
    offset: int
    sequence: int


class Put(NamedTuple):
    record: EntryRecord


class Remove(NamedTuple):
    entry: bytes


class NvmeIndex:
    """Opens or makes the index in directory `path`. Raises lmdb.Error; UnknownVersion when it is of
    another format version. A read-only one changes nothing and takes no lock."""

    def __init__(
        self, path: Path, map_bytes: int, storage: Storage, *, readonly: bool = False
    ) -> None:
        if not readonly:
            path.mkdir(exist_ok=True)
        self._storage = storage
        self._map_bytes = map_bytes
        self._directory = path
        self._env: Any = _open_environment(path, map_bytes, readonly=readonly)
        try:
            self._entries, self._overflow, self._placed, self._meta = (
                self._env.open_db(name, create=not readonly) for name in _DATABASES
            )
            self._check_format(readonly)
            self._pages = None if readonly else ResidentFile(path / DATA_FILE)
        except BaseException:
            self._env.close()
            raise
        self._keep_pages()

    def find(self, entries: Sequence[bytes]) -> list[EntryRecord | None]:
        """The record of each entry; None also for one that does not pass its checksum."""
        with self._env.begin() as txn:
            return [self._record(txn, index_key(entry), entry) for entry in entries]

    def places(self, entries: Sequence[bytes]) -> list[tuple[int, int] | None]:
        """(region, ordinal) of each entry's record, unread: a fifth of what `find` costs. One that
        is damaged has a place too."""
        keys = [index_key(entry) for entry in entries]
        with self._env.begin() as txn, txn.cursor(self._entries) as cursor:
            found = dict(cursor.getmulti(keys))
        values = map(found.get, keys)
        return [None if value is None else record_place(value) for value in values]

    def scan(self, after: bytes, limit: int) -> tuple[list[EntryRecord], bytes]:
        """Records with keys past `after` (b"" at first), and where to go on; b"": that was all."""
        records: list[EntryRecord] = []
        with self._env.begin() as txn, txn.cursor(self._entries) as cursor:
            found = cursor.set_range(after + b"\0") if after else cursor.first()
            key = after
            while found and len(records) < limit:
                key = bytes(cursor.key())
                record = self._record(txn, key)
                if record is not None:
                    records.append(record)
                found = cursor.next()
        return records, key if found else b""

    def apply(
        self,
        changes: Sequence[Put | Remove],
        position: Position | None,
        written: DayCount | None = None,
    ) -> list[EntryRecord]:
        """Makes the changes in one transaction; returns what the removals removed. `position` and
        `written` None stay as they are."""
        gone: list[EntryRecord] = []
        with self._write() as txn:
            for change in changes:
                if isinstance(change, Put):
                    self._take_out(txn, index_key(change.record.entry), None)
                    self._put(txn, change.record)
                else:
                    gone += self._take_out(txn, index_key(change.entry), None)
            if position is not None:
                txn.put(b"position", seal(b"position", _POSITION.pack(*position)), db=self._meta)
            if written is not None:
                txn.put(b"written", seal(b"written", _WRITTEN.pack(*written)), db=self._meta)
        self._keep_pages()
        return gone

    def at(self, region: int, ordinals: Sequence[int]) -> list[EntryRecord]:
        """The live entries among the records with these ordinals."""
        found = []
        with self._env.begin() as txn:
            for ordinal in ordinals:
                key = txn.get(_PLACE.pack(region, ordinal), db=self._placed)
                record = None if key is None else self._record(txn, key)
                if record is not None and (record.region, record.ordinal) == (region, ordinal):
                    found.append(record)
        return found

    def purge(self, region: int) -> tuple[list[EntryRecord], bool]:
        """Takes up to CHUNK_RECORDS entries of a region out. Returns them, and whether there may be
        more."""
        gone: list[EntryRecord] = []
        with self._write() as txn:
            places = self._places(txn, region)
            for place, key in places:
                removed = self._take_out(txn, key, place)
                if not removed:  # only the place is left of it
                    txn.delete(_PLACE.pack(*place), db=self._placed)
                gone += removed
        return gone, len(places) == CHUNK_RECORDS

    def remove_all(self) -> int:
        """Takes every entry out, however many, in one transaction; how many there were."""
        count = self.num_entries()
        with self._write() as txn:
            for database in (self._entries, self._overflow, self._placed):
                txn.drop(database, delete=False)
        return count

    def regions(self) -> dict[int, int]:
        """Regions that entries lie in, and the ordinal after their last."""
        found: dict[int, int] = {}
        with self._env.begin() as txn, txn.cursor(self._placed) as cursor:
            more = cursor.last()
            while more:
                region, ordinal = _PLACE.unpack(cursor.key())
                found[region] = ordinal + 1
                more = cursor.set_range(_PLACE.pack(region, 0)) and cursor.prev()
        return found

    def position(self) -> Position | None:
        with self._env.begin() as txn:
            value = txn.get(b"position", db=self._meta)
        return None if value is None else Position(*_POSITION.unpack(unseal(b"position", value)))

    def written(self) -> DayCount:
        """As the last `apply` that told it; a damaged count begins anew."""
        with self._env.begin() as txn:
            value = txn.get(b"written", db=self._meta)
        try:
            return DayCount(*_WRITTEN.unpack(unseal(b"written", value))) if value else DayCount()
        except Corrupt:
            return DayCount()

    def tier(self) -> bytes | None:
        """The tier this index belongs to, once `belong` was called."""
        with self._env.begin() as txn:
            value = txn.get(b"tier", db=self._meta)
        return None if value is None else unseal(b"tier", value)

    def belong(self, tier: bytes) -> None:
        with self._write() as txn:
            txn.put(b"tier", seal(b"tier", tier), db=self._meta)

    def num_entries(self) -> int:
        with self._env.begin() as txn:
            count: int = txn.stat(self._entries)["entries"]
        return count

    def used_ratio(self) -> float:
        """Share of the map that holds records; freed pages do not count."""
        pages = 0
        with self._env.begin() as txn:
            for database in (self._entries, self._overflow, self._placed, self._meta):
                stat = txn.stat(database)
                pages += stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
        return float(pages * stat["psize"] / self._map_bytes)

    def file_bytes(self) -> int:
        return file_bytes(self._directory)

    def sync(self) -> None:
        """Makes the last commit durable against loss of power, too."""
        self._env.sync(True)

    def close(self) -> None:
        if self._pages is not None:
            self._pages.close()
        self._env.close()

    def check_integrity(self) -> None:
        """Reads all of it. Raises Corrupt; a file damaged inside LMDB's own pages may also end the
        process."""
        info = self._env.info()
        if (info["last_pgno"] + 1) * self._env.stat()["psize"] > (
            self._directory / DATA_FILE
        ).stat().st_size:
            raise Corrupt(f"index {self._directory} is shorter than its pages")
        self.position()
        self.tier()
        num_records = 0
        with self._env.begin() as txn, txn.cursor(self._entries) as cursor:
            for key in cursor.iternext(values=False):
                record = self._record(txn, key)
                if record is None or index_key(record.entry) != key:
                    raise Corrupt(f"index record {key.hex()} is damaged")
                if txn.get(_PLACE.pack(record.region, record.ordinal), db=self._placed) != key:
                    raise Corrupt(f"index record {key.hex()} has no place")
                num_records += 1
            num_places = txn.stat(self._placed)["entries"]
        if num_records != num_places:
            raise Corrupt(f"index has {num_records} records and {num_places} places")

    def _check_format(self, readonly: bool) -> None:
        with self._env.begin(write=not readonly) as txn:
            version = txn.get(b"format", db=self._meta)
            if version is None and not readonly:
                txn.put(b"format", _FORMAT.pack(VERSION), db=self._meta)
            elif version != _FORMAT.pack(VERSION):
                raise UnknownVersion(f"index {self._directory} has another format version")

    def _keep_pages(self) -> None:
        """Those who look something up wait for no disk."""
        if self._pages is not None:
            self._pages.keep()

    def _write(self) -> Any:
        self._storage.before_index_commit()
        return self._env.begin(write=True)

    def _record(self, txn: Any, key: bytes, entry: bytes | None = None) -> EntryRecord | None:
        """`entry`: the id that the record must name."""
        value = txn.get(key, db=self._entries)
        if value is None:
            return None
        try:
            body = unseal(key, value)
            if len(body) == _PART_BYTES:
                body += self._rest(txn, body)
            record = EntryRecord(body)
        except Corrupt:
            return None
        return record if entry is None or record.entry == entry else None

    def _rest(self, txn: Any, body: bytes) -> bytes:
        region, ordinal, size = record_size(body)
        parts = []
        for part in range(-(-(size - _PART_BYTES) // _PART_BYTES)):
            key = _PART.pack(region, ordinal, part)
            parts.append(unseal(key, txn.get(key, db=self._overflow) or b""))
        return b"".join(parts)

    def _put(self, txn: Any, record: EntryRecord) -> None:
        key, body = index_key(record.entry), record.body
        txn.put(key, seal(key, body[:_PART_BYTES]), db=self._entries)
        for part, start in enumerate(range(_PART_BYTES, len(body), _PART_BYTES)):
            part_key = _PART.pack(record.region, record.ordinal, part)
            value = seal(part_key, body[start : start + _PART_BYTES])
            txn.put(part_key, value, db=self._overflow)
        txn.put(_PLACE.pack(record.region, record.ordinal), key, db=self._placed)

    def _take_out(self, txn: Any, key: bytes, at: tuple[int, int] | None) -> Sequence[EntryRecord]:
        record = self._record(txn, key)
        if record is None or at not in (None, (record.region, record.ordinal)):
            return ()
        txn.delete(key, db=self._entries)
        txn.delete(_PLACE.pack(record.region, record.ordinal), db=self._placed)
        for part in range(-(-len(record.body) // _PART_BYTES) - 1):
            txn.delete(_PART.pack(record.region, record.ordinal, part), db=self._overflow)
        return (record,)

    def _places(self, txn: Any, region: int) -> list[tuple[tuple[int, int], bytes]]:
        places: list[tuple[tuple[int, int], bytes]] = []
        with txn.cursor(self._placed) as cursor:
            more = cursor.set_range(_PLACE.pack(region, 0))
            while more and len(places) < CHUNK_RECORDS:
                place = _PLACE.unpack(cursor.key())
                if place[0] != region:
                    break
                places.append((place, bytes(cursor.value())))
                more = cursor.next()
        return places


def file_bytes(path: Path) -> int:
    """What the index in directory `path` takes on disk; nothing once somebody has removed it."""
    try:
        return (path / DATA_FILE).stat().st_blocks * 512
    except FileNotFoundError:
        return 0


def _open_environment(path: Path, map_bytes: int, *, readonly: bool) -> Any:
    """LMDB with the settings that survive full disks, killed readers and loss of power (the last
    commit may be lost then: the log has it). A read-only one leaves nothing behind."""
    with contextlib.nullcontext() if readonly else _lock_in_memory(path / LOCK_FILE):
        return lmdb.open(
            str(path),
            map_size=map_bytes,
            max_dbs=len(_DATABASES),
            max_readers=512,
            readonly=readonly,
            lock=not readonly,
            readahead=False,
            writemap=False,
            sync=True,
            metasync=False,
        )


@contextlib.contextmanager
def _lock_in_memory(path: Path) -> Iterator[None]:
    """What LMDB opens as its lock file within is memory of this process. Every reader writes to it:
    in a file, those would wait as long as the disk takes no writes. A process that opens the index
    besides shares no lock with this one: it keeps no page from being used again, and must not
    write."""
    memory = os.memfd_create("moontide-index-lock")
    try:
        path.unlink(missing_ok=True)
        path.symlink_to(f"/proc/self/fd/{memory}")
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(memory)

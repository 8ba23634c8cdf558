"""One region file: batches appended by the writer, read by any thread."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path

from moontide.transfer import FileAccess, aligned_buffer
from moontide.transfer.types import PAGE_BYTES

from ..errors import Corrupt
from .log_format import (
    NONCE_BYTES,
    TIER_BYTES,
    BatchHeader,
    RegionHeader,
    decode_batch_header,
    decode_region_header,
    encode_region_header,
    peek_batch_header,
)
from .storage import DISK_ERRORS, RegionFile, Storage

DRAFT_SUFFIX = ".draft"
_SCAN_BYTES = 1 << 20
_MAX_HEADER_BYTES = 64 << 20


class Region:
    """Durable batches end at `end` (bytes) and hold `num_records`. The next batch goes to `tip`,
    its first record is number `next_ordinal`: what lies between is not durable yet. `use` and
    `retire` may be called by any thread."""

    def __init__(self, header: RegionHeader, file: RegionFile, *, end: int = PAGE_BYTES) -> None:
        self.id = header.region
        self.tier = header.tier
        self.nonce = header.nonce
        self.file = file
        self.end = self.tip = end
        self.num_records = self.next_ordinal = 0
        self._hot = bytearray()  # one byte a record: touched since written
        self._lock = threading.Lock()
        self._users = 0
        self._retired = False

    @classmethod
    def begin(cls, file: RegionFile, num_bytes: int, *, tier: bytes, region: int) -> Region:
        """A new region in a draft, all of its bytes reserved. In the file of a region that is gone
        nothing has to be allocated, and what is overwritten in place is written faster; what it
        held is void with its header. Raises one of DISK_ERRORS; the file is closed then."""
        header = RegionHeader(region, tier + secrets.token_bytes(NONCE_BYTES - TIER_BYTES))
        try:
            file.reserve(num_bytes)
            page = aligned_buffer(PAGE_BYTES)
            page[:] = encode_region_header(header)
            file.write_from([page], 0)
            file.sync()
        except BaseException:
            file.close()
            raise
        return cls(header, file)

    @classmethod
    def open(cls, storage: Storage, path: Path) -> Region:
        """Raises UnknownVersion, Corrupt, or one of DISK_ERRORS. Its end is that of the file."""
        file = storage.open_file(path, FileAccess.WRITE)
        try:
            size = file.size()
            if size < PAGE_BYTES:
                raise Corrupt(f"region file {path} has {size} bytes")
            page = aligned_buffer(PAGE_BYTES)
            _read(file, page, 0)
            return cls(decode_region_header(bytes(page)), file, end=size)
        except BaseException:
            file.close()
            raise

    def batches(self, start: int) -> Iterator[BatchHeader]:
        """The batches from offset `start` on, in order. A damaged header is stepped over: the next
        batch is found by its magic, the region's nonce and its checksum. Raises one of
        DISK_ERRORS."""
        offset, size = max(start, PAGE_BYTES), self.file.size()
        while offset + PAGE_BYTES <= size:
            try:
                batch = self._batch_at(offset, size)
            except Corrupt:
                offset = self._next_header(offset + PAGE_BYTES, size)
                continue
            yield batch
            offset = batch.offset + batch.num_bytes

    def touch(self, ordinal: int) -> None:
        """Marks a record as hot, unless it is of a past life of the process."""
        if ordinal < len(self._hot):
            self._hot[ordinal] = 1

    def cut(self, end: int) -> None:
        """What lies behind `end` goes. Raises one of DISK_ERRORS."""
        self.file.truncate(end)
        self.end = self.tip = end

    def grow(self, num_records: int) -> None:
        self.num_records = num_records
        self._hot.extend(bytes(max(0, num_records - len(self._hot))))

    def hot_ordinals(self) -> list[int]:
        return [ordinal for ordinal, is_hot in enumerate(self._hot) if is_hot]

    def use(self) -> bool:
        """Keeps the file open until `leave`. False: the region is gone."""
        with self._lock:
            self._users += not self._retired
            return not self._retired

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            is_last = self._retired and self._users == 0
        if is_last:
            self.file.close()

    def retire(self) -> None:
        """No new users; the file is closed with the last one."""
        with self._lock:
            is_last = not self._retired and self._users == 0
            self._retired = True
        if is_last:
            self.file.close()

    def retire_to_recycle(self) -> RegionFile | None:
        """As `retire`, but the file stays open for `recycle`. None: someone still reads it."""
        with self._lock:
            is_idle = not self._retired and self._users == 0
            self._retired = True
        return self.file if is_idle else None

    def _batch_at(self, offset: int, size: int) -> BatchHeader:
        page = aligned_buffer(PAGE_BYTES)
        _read(self.file, page, offset)
        header_bytes = peek_batch_header(bytes(page), self.nonce, offset)
        if header_bytes > min(size - offset, _MAX_HEADER_BYTES):
            raise Corrupt(f"the batch header at {offset} claims {header_bytes} bytes")
        if header_bytes > PAGE_BYTES:
            page = aligned_buffer(header_bytes)
            _read(self.file, page, offset)
        batch = decode_batch_header(bytes(page))
        if batch.offset + batch.num_bytes > size:
            raise Corrupt(f"the batch at {offset} goes past the end of its region")
        return batch

    def _next_header(self, start: int, size: int) -> int:
        """Offset of the next page that begins like a batch header, or `size`."""
        buffer = aligned_buffer(_SCAN_BYTES)
        for offset in range(start, size, _SCAN_BYTES):
            window = buffer[: min(_SCAN_BYTES, (size - offset) // PAGE_BYTES * PAGE_BYTES)]
            _read(self.file, window, offset)
            for position in range(0, len(window), PAGE_BYTES):
                with contextlib.suppress(Corrupt):
                    page = bytes(window[position : position + PAGE_BYTES])
                    peek_batch_header(page, self.nonce, offset + position)
                    return offset + position
        return size


def _read(file: RegionFile, buffer: memoryview, offset: int) -> None:
    """A read that fails is tried once more: what recovery cannot read, it drops."""
    try:
        file.read_into([buffer], offset)
    except DISK_ERRORS:
        file.read_into([buffer], offset)

"""Values that go into and come out of the NVMe tier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec

from ..errors import InvalidRequest
from .records import MAX_EXTENT_BYTES, MAX_EXTENTS, MAX_ID_BYTES, MAX_NAME_BYTES, EntryRecord

NvmeLocation = EntryRecord
"""Where an entry lies on the tier and what it holds: `length`, `num_extents`, `checksums`,
`extent_lengths`, `namespace`, `parent`, `entry`. Only the tier's `read` can use it; it stays
harmless when the entry has gone meanwhile (its extents then fail)."""
Post = Callable[[Callable[[], None]], None]
"""Runs a callable on the thread that uses the tier: `loop.call_soon_threadsafe`."""
Done = Callable[[bool], None]
ReadDone = Callable[[Sequence[bool]], None]


@dataclass(frozen=True, slots=True, eq=False)
class NvmeWrite:
    """One entry to store. `namespace` is a digest in hex, "" for string entries. `extents` are
    contiguous and stay unchanged until `done`; `checksums` are the xxh3-64 of each, 0 where nobody
    has summed them yet: that is done here. `element_bytes` is the size of the numbers in them (2
    for 16-bit floats, 1 for bytes): it steers compression. Raises InvalidRequest."""

    entry: bytes
    namespace: str
    parent: bytes
    extents: Sequence[memoryview]
    checksums: Sequence[int]
    element_bytes: int = 1

    def __post_init__(self) -> None:
        for name, value, least, most in (
            ("entry id bytes", len(self.entry), 1, MAX_ID_BYTES),
            ("namespace characters", len(self.namespace), 0, 2 * MAX_NAME_BYTES),
            ("parent bytes", len(self.parent), 0, MAX_NAME_BYTES),
            ("extents", len(self.extents), 1, MAX_EXTENTS),
            ("checksums", len(self.checksums), len(self.extents), len(self.extents)),
            ("element_bytes", self.element_bytes, 1, 16),
            (
                "bytes of an extent",
                max((e.nbytes for e in self.extents), default=0),
                0,
                MAX_EXTENT_BYTES,
            ),
        ):
            if not least <= value <= most:
                raise InvalidRequest(f"{value} {name}; there must be {least}..{most}")


class ExtentRead(NamedTuple):
    """One extent to bring in. `destination` has exactly the extent's length and belongs to the
    tier until `done`; page-aligned ones are filled without a copy. `is_wanted` is asked on a
    reader's thread, right before: where it is not, the disk is left alone."""

    location: NvmeLocation
    extent: int
    destination: memoryview
    is_wanted: Callable[[], bool] = lambda: True


class NvmeEntry(NamedTuple):
    """An entry that became durable on the tier, or left it."""

    namespace: str
    entry: bytes
    parent: bytes
    length: int


class NvmeStats(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in bytes. `used_bytes` is all the tier has on disk, index and files set aside
    included. Counters only grow."""

    capacity_bytes: int
    used_bytes: int
    index_bytes: int
    regions: int
    entries: int  # durable
    pending_writes: int
    pending_reads: int
    evictions: int  # entries that left with their region
    reinserted: int  # hot entries written anew instead
    removals: int
    bytes_in: int  # raw bytes stored
    bytes_written: int  # to the medium: compressed, with headers, with re-insertions
    bytes_written_today: int  # since midnight UTC, restarts or not
    bytes_left_today: int | None  # of the daily write budget; None: there is none
    writes_put_off: int  # times the write budget made an entry wait
    bytes_out: int  # raw bytes read
    corrupt: int  # extents that could not be read, or did not match their checksum
    disk_errors: int
    refused_writes: int  # queue full, entry too large
    failed_writes: int
    io: Literal["posix-direct", "posix-buffered"]  # past the page cache or through it; no io_uring
    index_rebuilt: bool  # from the regions, when the tier was opened
    foreign_files: tuple[str, ...]  # left alone
    set_aside_files: tuple[str, ...]  # of an unknown format version

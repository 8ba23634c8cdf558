"""Settings of the NVMe tier and the limits that follow from them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from moontide.transfer.types import PAGE_BYTES, align_up

from ..errors import InvalidRequest

DEFAULT_REGION_BYTES = 64 << 20
MIN_REGION_BYTES = 64 << 10
MIN_REGIONS = 4
MAX_REGIONS = 400
"""Each is an open file."""
MAX_DEFAULT_REGIONS = 256
REGION_OVERHEAD_BYTES = 64 << 10
"""Headers of a region that holds one entry of ordinary shape."""
MAX_REGION_BYTES = 1 << 40
MAX_ENTRIES = 1 << 30
MIN_WRITE_RATE = 4096
_INDEX_ENTRY_BYTES = 1024
_MIN_INDEX_BYTES = 1 << 20
_MAX_FLOOR_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmeSettings:
    """Sizes of the NVMe tier. `directory` belongs to it alone and is made when missing; whoever
    opens the tier holds the lock of the data dir around it.

    `capacity_bytes` bounds all that the tier has on disk: regions, index, temporary files, files
    set aside. `region_bytes` (whole pages) bounds the largest entry; None: see `region_bytes_for`.
    `max_entries` None: one for each page of the capacity. `free_floor_bytes` is what the tier
    leaves free on its file system; None: 1 % of it, at most 1 GiB. `compression` `auto` compresses
    the entries whose sample shows a gain. `write_rate` (bytes a second) and `write_daily` (bytes a
    day, UTC) are the write budget; None: no limit. `backlog` says what a full warmer tier does with
    entries that are not here yet; `writes` when they come: as they are stored, or once they are
    among its coldest. Raises InvalidRequest."""

    directory: Path
    capacity_bytes: int
    region_bytes: int | None = None
    max_entries: int | None = None
    compression: Literal["auto", "off"] = "auto"
    backlog: Literal["evict", "refuse"] = "evict"
    writes: Literal["through", "late"] = "through"
    free_floor_bytes: int | None = None
    write_rate: int | None = None
    write_daily: int | None = None
    num_readers: int = 3
    queue_bytes: int = 256 << 20
    queue_entries: int = 16384

    def __post_init__(self) -> None:
        if self.compression not in ("auto", "off"):
            raise InvalidRequest(f"compression is {self.compression!r}; known: auto, off")
        if self.writes == "late" and self.backlog == "refuse":
            raise InvalidRequest(
                "writes is late and backlog refuse: a full pool would wait for what is not copied "
                "before it is cold; choose one of them"
            )
        for name, value, least, most in (
            ("region_bytes", self.region_size, MIN_REGION_BYTES, MAX_REGION_BYTES),
            ("max_entries", self.entry_limit, 1, MAX_ENTRIES),
            ("num_readers", self.num_readers, 1, 64),
            ("queue_bytes", self.queue_bytes, 1, 1 << 40),
            ("queue_entries", self.queue_entries, 1, 1 << 20),
            ("write_rate", self.write_rate, MIN_WRITE_RATE, 1 << 50),
            ("write_daily", self.write_daily, 1, 1 << 60),
            ("free_floor_bytes", self.free_floor_bytes, 0, 1 << 60),
        ):
            if value is not None and not least <= value <= most:
                raise InvalidRequest(f"{name} is {value}; it must lie in {least}..{most}")
        if self.region_size % PAGE_BYTES:
            raise InvalidRequest(
                f"region_bytes is {self.region_size}; it must be a multiple of {PAGE_BYTES}"
            )
        least = MIN_REGIONS * self.region_size + 2 * _MIN_INDEX_BYTES
        if self.capacity_bytes < least:
            raise InvalidRequest(
                f"capacity_bytes is {self.capacity_bytes}; with regions of {self.region_size} "
                f"bytes the NVMe tier needs at least {least}: raise it or lower region_bytes"
            )
        if self.capacity_bytes // self.region_size > MAX_REGIONS:
            raise InvalidRequest(
                f"capacity_bytes is {self.capacity_bytes}, more than {MAX_REGIONS} regions of "
                f"{self.region_size} bytes: raise region_bytes to at least "
                f"{align_up(-(-self.capacity_bytes // MAX_REGIONS), PAGE_BYTES)}"
            )

    @property
    def region_size(self) -> int:
        return self.region_bytes or region_bytes_for(self.capacity_bytes)

    @property
    def entry_limit(self) -> int:
        if self.max_entries is not None:
            return self.max_entries
        return min(max(self.capacity_bytes // PAGE_BYTES, 1), MAX_ENTRIES)

    @property
    def index_map_bytes(self) -> int:
        """Room of the index: generous for its entries, at most a quarter of the capacity."""
        wanted = max(16 << 20, self.entry_limit * _INDEX_ENTRY_BYTES)
        return align_up(max(_MIN_INDEX_BYTES, min(wanted, self.capacity_bytes // 4)), PAGE_BYTES)

    @property
    def region_records(self) -> int:
        """Records a region takes at most, however small: so that eviction by region can keep the
        limits on entries and index."""
        by_index = self.index_map_bytes // (2 * _INDEX_ENTRY_BYTES)
        return max(1, min(self.entry_limit, by_index) // 8)

    def free_floor(self) -> int:
        if self.free_floor_bytes is not None:
            return self.free_floor_bytes
        file_system = os.statvfs(self.directory)
        return free_floor_of(file_system.f_blocks * file_system.f_frsize)


def free_floor_of(file_system_bytes: int) -> int:
    """What a tier leaves free of a file system unless told otherwise."""
    return min(file_system_bytes // 100, _MAX_FLOOR_BYTES)


def region_bytes_for(capacity_bytes: int, largest_entry_bytes: int = 0) -> int:
    """The default size of a region: 64 MiB, an eighth of a small capacity, 1/256 of a large one
    (each region is an open file), and always enough for the largest entry."""
    by_capacity = max(
        min(DEFAULT_REGION_BYTES, capacity_bytes // 8),
        capacity_bytes // MAX_DEFAULT_REGIONS,
        MIN_REGION_BYTES,
    )
    by_entry = align_up(largest_entry_bytes + REGION_OVERHEAD_BYTES, PAGE_BYTES)
    return max(by_capacity // PAGE_BYTES * PAGE_BYTES, by_entry if largest_entry_bytes else 0)

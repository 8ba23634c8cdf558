"""Running counts of the tier. Each is changed by one thread; readers may be a little behind."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class WriterCounters:
    """The writer's thread."""

    evictions: int = 0
    reinserted: int = 0
    removals: int = 0
    bytes_in: int = 0
    bytes_written: int = 0
    disk_errors: int = 0
    failed_writes: int = 0
    too_large: int = 0


@dataclass(slots=True)
class ReaderCounters:
    """The readers' threads, under their lock."""

    bytes_out: int = 0
    corrupt: int = 0
    disk_errors: int = 0


@dataclass(slots=True)
class CallCounters:
    """The thread that uses the tier."""

    refused_writes: int = 0
    put_off: int = 0
    disk_errors: int = 0

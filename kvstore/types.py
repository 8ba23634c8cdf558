"""Values of the public interface and of the seam between the store's core, its daemon and its
clients."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Literal, NamedTuple

from moontide.transfer.types import Instance, SegmentIndex

__all__ = [
    "Extent",
    "IfExists",
    "Instance",
    "Located",
    "PutResult",
    "PutStatus",
    "ReserveStatus",
    "SegmentIndex",
    "Tier",
]

IfExists = Literal["keep", "replace", "error"]


class Tier(enum.StrEnum):
    HBM = "hbm"
    DRAM = "dram"
    NVME = "nvme"


class PutStatus(enum.IntEnum):
    STORED = 0
    EXISTS = 1
    FULL = 2  # retry later
    FAILED = 3


class ReserveStatus(enum.IntEnum):
    RESERVED = 0
    EXISTS = 1
    FULL = 2
    FAILED = 3


@dataclass(frozen=True, slots=True)
class PutResult:
    status: PutStatus
    reason: str = ""


class Extent(NamedTuple):
    """One layer extent of a committed entry (a string entry has one)."""

    offset: int  # from the entry's first byte
    length: int
    checksum: int  # xxh3-64


class Located(NamedTuple):
    """Where an entry lies. Valid while its header slot still shows `generation`."""

    slot: int
    generation: int
    segment: int
    offset: int
    length: int
    checksum: int  # of a single-extent entry; 0 when the entry has an extent table

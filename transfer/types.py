"""Names of processes and of the memory they contribute; what a transfer is asked and answered."""

from __future__ import annotations

import enum
import os
import secrets
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NewType

SegmentIndex = NewType("SegmentIndex", int)
"""Position of a segment in its instance's list; an address is (segment, offset)."""

CACHE_LINE_BYTES = 64
PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Instance:
    """One life of one process. Equality fences: a restart under the same name is another
    instance."""

    node: str
    process: int
    nonce: bytes  # 16 random bytes

    @classmethod
    def new(cls, node: str) -> Instance:
        return cls(node, os.getpid(), secrets.token_bytes(16))

    def __str__(self) -> str:
        return f"{self.node}/{self.process}/{self.nonce.hex()}"

    @classmethod
    def parse(cls, text: str) -> Instance:
        """Inverse of `str()`. Raises ValueError on anything else."""
        node, process, nonce = text.rsplit("/", 2)
        return cls(node, int(process), bytes.fromhex(nonce))


BatchId = NewType("BatchId", int)
"""A submitted list of transfer requests, within one transport."""


class Opcode(enum.IntEnum):
    """As the initiator sees it: READ brings remote bytes here, WRITE takes local bytes there."""

    READ = 1
    WRITE = 2


class Priority(enum.IntEnum):
    """Who waits for a batch. Smaller goes first."""

    URGENT = 0  # a request that stands still without it
    NORMAL = 1
    BACKGROUND = 2  # nobody


@dataclass(frozen=True, slots=True)
class SegmentAddress:
    instance: str  # str(Instance): a restarted process is another one
    segment: int


@dataclass(frozen=True, slots=True)
class TransferRequest:
    """`len(local)` bytes between `local` (contiguous bytes, the caller's; left alone until the
    slice is terminal) and `offset` of a remote segment."""

    opcode: Opcode
    local: memoryview
    remote: SegmentAddress
    offset: int


class SliceState(enum.Enum):
    PENDING = "pending"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class SliceStatus:
    """`reason` of a failure is a stable code, or one with details: "deadline", "closed",
    "internal: …", or that of an error (errors.py): "unknown_segment: …", "out_of_range: …",
    "read_only: …", "other_instance: …", "no_route: …", "unavailable: …", "unreachable: …",
    "access_denied: …", "busy: …", "malformed: …", "file_failed: …"."""

    state: SliceState
    reason: str = ""

    @property
    def code(self) -> str:
        return self.reason.partition(":")[0]


@dataclass(frozen=True, slots=True)
class TransferCounters:
    """Since the start. Bytes of slices that were done, as this side saw them: in is received."""

    bytes_in: int = 0
    bytes_out: int = 0
    slices_done: int = 0
    slices_failed: int = 0  # cancelled ones too
    unknown_notices: int = 0  # completions nobody waited for: counted, harmless


@cache
def boot_id() -> str:
    """Identity of this kernel boot: two processes that differ in it never share memory or a
    monotonic clock."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def align_up(num_bytes: int, alignment: int) -> int:
    return -(-num_bytes // alignment) * alignment

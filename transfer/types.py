"""Names of processes and of the memory they contribute."""

from __future__ import annotations

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


@cache
def boot_id() -> str:
    """Identity of this kernel boot: two processes that differ in it never share memory or a
    monotonic clock."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def align_up(num_bytes: int, alignment: int) -> int:
    return -(-num_bytes // alignment) * alignment

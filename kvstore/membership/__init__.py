"""Who is in the cluster: records under leases, in this process or in a directory."""

from __future__ import annotations

import time
from pathlib import Path

from ..errors import InvalidRequest
from .file import FileMembership
from .keeper import DEFAULT_TTL_S, Keeper
from .memory import MemoryMembership
from .records import Member, Membership, Record, Registration, StoreRecord, WorkerRecord, kind_of

__all__ = [
    "DEFAULT_TTL_S",
    "FileMembership",
    "Keeper",
    "Member",
    "Membership",
    "MemoryMembership",
    "Record",
    "Registration",
    "StoreRecord",
    "WorkerRecord",
    "kind_of",
    "open_membership",
]


def open_membership(address: str) -> Membership:
    """`memory` (this process only) or `file:DIRECTORY` (this machine). Raises InvalidRequest,
    OSError."""
    kind, _, rest = address.partition(":")
    if kind == "memory" and not rest:
        return MemoryMembership(time.monotonic)
    if kind == "file" and rest:
        return FileMembership(Path(rest))
    if kind == "etcd":
        raise InvalidRequest(f"cluster {address!r}: etcd is not supported yet; use file:DIRECTORY")
    raise InvalidRequest(f"cluster {address!r}: write memory or file:DIRECTORY")

"""Who is in the cluster: records under leases, in this process, in a directory, or in etcd."""

from __future__ import annotations

import time
from pathlib import Path

from ..errors import InvalidRequest
from .file import FileMembership
from .keeper import DEFAULT_TTL_S, Keeper
from .memory import MemoryMembership
from .records import (
    MAX_ID_CHARS,
    NODE_MARK,
    REMOVAL_MARK,
    Member,
    Membership,
    Record,
    Registration,
    StoreRecord,
    WorkerRecord,
    kind_of,
)

__all__ = [
    "DEFAULT_TTL_S",
    "NODE_MARK",
    "REMOVAL_MARK",
    "FileMembership",
    "Keeper",
    "MAX_ID_CHARS",
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
    """`memory` (this process only), `file:DIRECTORY` (this machine) or
    `etcd://HOST:PORT[,HOST:PORT]`. Raises InvalidRequest, OSError."""
    kind, _, rest = address.partition(":")
    if kind == "memory" and not rest:
        return MemoryMembership(time.monotonic)
    if kind == "file" and rest:
        return FileMembership(Path(rest))
    if kind == "etcd" and rest.startswith("//"):
        return _open_etcd(rest.removeprefix("//"))
    raise InvalidRequest(
        f"cluster {address!r}: write memory, file:DIRECTORY or etcd://HOST:PORT[,HOST:PORT]"
    )


def _open_etcd(servers: str) -> Membership:
    try:
        from .etcd import EtcdMembership, parse_endpoints  # an optional dependency
    except ImportError as error:
        raise InvalidRequest(
            f"cluster etcd://{servers}: {error}; pip install 'moontide[cluster]'"
        ) from error
    return EtcdMembership(parse_endpoints(servers))

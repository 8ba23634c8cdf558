"""Who is in the cluster: records under leases, in this process, in a directory, or in etcd."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
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
    "opener",
]


def open_membership(address: str) -> Membership:
    """`memory` (this process only), `file:DIRECTORY` (this machine) or
    `etcd://HOST:PORT[,HOST:PORT]`. Raises InvalidRequest, OSError."""
    return opener(address)()


def opener(address: str) -> Callable[[], Membership]:
    """What opens it. Raises InvalidRequest; touches nothing yet."""
    kind, _, rest = address.partition(":")
    if kind == "memory" and not rest:
        return partial(MemoryMembership, time.monotonic)
    if kind == "file" and rest:
        return partial(FileMembership, Path(rest))
    if kind == "etcd" and rest.startswith("//"):
        etcd = _open_etcd(rest.removeprefix("//"))  # asks nobody before its first call
        return lambda: etcd
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

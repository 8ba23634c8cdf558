"""What a member tells of itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, Protocol

import msgspec

MAX_ID_CHARS = 100
NODE_MARK = b"node/".hex()
"""Of the names that have floors, those of stores begin with it (daemon/absences.py)."""
REMOVAL_MARK = b"removed/".hex()
"""And those that count the removals of blocks of a namespace (daemon/removals.py)."""


class StoreRecord(msgspec.Struct, frozen=True, kw_only=True, tag="store", tag_field="kind"):
    """A store daemon."""

    id: str  # node id
    instance: str
    admin_url: str
    data_address: str  # HOST:PORT
    socket: str
    transfer_address: str = ""  # HOST:PORT where peers read the pool; empty: nowhere


class WorkerRecord(msgspec.Struct, frozen=True, kw_only=True, tag="worker", tag_field="kind"):
    """An engine that serves requests. `namespace` is the hex digest its blocks are stored under."""

    id: str
    instance: str
    url: str
    role: Literal["prefill", "decode", "both"]
    model: str
    node: str
    store_instance: str
    namespace: str
    block_tokens: int
    tokenizer_digest: str
    context_tokens: int  # prompt and output together that one request can have there
    max_running: int


Record = StoreRecord | WorkerRecord


class Member(msgspec.Struct, frozen=True):
    """A live member. A higher `revision` came later, across all members."""

    record: Record
    revision: int


class Registration(msgspec.Struct, frozen=True):
    """What its holder shows to renew or leave; superseded by the next registration of that name."""

    record: Record
    revision: int
    ttl_s: float


def kind_of(record: Record) -> str:
    return str(record.__struct_config__.tag)


class Membership(Protocol):
    """Who is there, under leases, and the floors of namespaces, which stay. Every call returns
    within a few seconds; those of `file` and `etcd` may block that long, so an event loop calls
    them in a thread (`Keeper` does). All raise StoreUnavailable when what keeps it is away."""

    def register(self, record: Record, ttl_s: float) -> Registration:
        """Join, or replace what this same instance said before. Raises Conflict while another
        instance holds the name under a live lease, InvalidRequest, StoreTimeout."""

    def renew(self, registration: Registration) -> bool:
        """Extend the lease by its TTL from now. False: it has ended or was superseded; register
        again."""

    def leave(self, registration: Registration) -> None:
        """End the lease now. Nothing happens when it is no longer held."""

    def members(self) -> list[Member]:
        """Every member whose lease lives, by kind and id."""

    def floors(self) -> dict[str, int]:
        """The floor of each namespace (digest, hex) whose floor was ever raised."""

    def raise_floors(self, namespaces: Collection[str], known: Mapping[str, int]) -> dict[str, int]:
        """Lifts the floor of each of these above what lies here and what is `known`; of all else
        that is known the higher stays. Floors as they are then. Raises InvalidRequest beyond
        MAX_FLOORS, StoreTimeout."""

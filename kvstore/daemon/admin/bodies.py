"""What the admin routes take and answer."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from ...keys import MAX_STRING_KEY_BYTES
from ...membership import MAX_ID_CHARS
from ...store import MAX_TTL_SECONDS, EntryInfo, Evicted, TenantUsage

TierName = Literal["dram", "nvme"]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Limit = Annotated[int, Meta(ge=1, le=1000)]
ByteCount = Annotated[int, Meta(ge=0, le=1 << 62)]
MAX_PINNED_KEYS = 1024
KeyText = Annotated[str, Meta(max_length=3 * MAX_STRING_KEY_BYTES + 2)]
"""A key, each byte percent-encoded."""
DigestText = Annotated[str, Meta(max_length=64)]
NodeText = Annotated[str, Meta(max_length=MAX_ID_CHARS)]
CopySeconds = Annotated[float, Meta(gt=0, le=3600)]


class BlocksQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`namespace` (hex digest; empty: string entries), `key_prefix` like a key."""

    namespace: DigestText | None = None
    tier: TierName | None = None
    key_prefix: KeyText | None = None
    limit: Limit = 100
    cursor: KeyText = ""


class KeyQuery(Struct, frozen=True, forbid_unknown_fields=True):
    key: KeyText


class BlockAnswer(Struct, frozen=True):
    """All that is stored under one key: a string entry, or the shards of a block."""

    key: str
    entries: list[EntryInfo]


class RemoveQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`namespace` (hex digest) of a block that perhaps only nodes have which are away now."""

    namespace: DigestText | None = None


class RemoveAnswer(Struct, frozen=True):
    removed: int


class EvictRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """All conditions given must hold; `bytes` stops once so much is freed (of each tier).
    `tier`: only that tier's copies; none: every tier's (those of dram with `older_than_s`, which
    the nvme tier does not know)."""

    tier: TierName | None = None
    namespace: DigestText | None = None
    keys: Annotated[tuple[KeyText, ...], Meta(max_length=16384)] | None = None
    key_prefix: KeyText | None = None
    bytes: ByteCount | None = None
    older_than_s: Seconds | None = None
    dry_run: bool = False


class EvictAnswer(Struct, frozen=True):
    dry_run: bool
    tiers: dict[str, Evicted]


class ClearRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """`namespace` (hex digest; empty: string entries); none: everything. `nodes`: of the cluster,
    those that are away before they serve again, or only this one."""

    namespace: DigestText | None = None
    dry_run: bool = False
    nodes: Literal["all", "this"] = "all"


class ClearAnswer(Struct, frozen=True):
    dry_run: bool
    entries: int


class FloorRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """One of: `namespace` (hex digest), or all namespaces opened here that have this `weights_id`
    or this tenant's `salt`."""

    namespace: DigestText | None = None
    weights_id: KeyText | None = None
    salt: KeyText | None = None


class FloorAnswer(Struct, frozen=True):
    """The new floor of each namespace, and the nodes (ids) that have confirmed it. Those `away`
    take it up before they are asked for blocks again."""

    floors: dict[str, int]
    in_force: list[str]
    away: list[str]


class PinRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """`keys`: kv:HEX (all shards of that block) or s:TEXT, as far as they lie in DRAM."""

    keys: Annotated[tuple[KeyText, ...], Meta(min_length=1, max_length=MAX_PINNED_KEYS)]
    ttl_s: Annotated[float, Meta(gt=0, le=MAX_TTL_SECONDS)] = 600.0


class PinAnswer(Struct, frozen=True):
    pin: str  # hex; empty: nothing was there to pin
    entries: int
    num_bytes: int
    missing: list[str]  # keys of which nothing lies in DRAM


class PinInfo(Struct, frozen=True):
    pin: str
    keys: list[str]
    entries: int
    num_bytes: int
    seconds_left: float


class PinsAnswer(Struct, frozen=True):
    pins: list[PinInfo]


class UnpinRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """`pin` as /v1/pin answered it; none: all pins of operators."""

    pin: KeyText | None = None


class UnpinAnswer(Struct, frozen=True):
    unpinned: int


class CopyRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """All conditions given must hold. `to`: node id; none: whoever has most room. What is not done
    in `seconds`, or is beyond 65536 entries, is left: the same request goes on with it, but for a
    copy of more than so many."""

    to: NodeText | None = None
    namespace: DigestText | None = None
    keys: Annotated[tuple[KeyText, ...], Meta(max_length=16384)] | None = None
    key_prefix: KeyText | None = None
    seconds: CopySeconds = 30.0
    dry_run: bool = False


class CopyAnswer(Struct, frozen=True):
    """`nodes`: how many entries each took, those that it had already among them; of a dry run:
    none, and all that were meant are `left`. `ended_here`: by a move. `reason`: the first why
    something was left."""

    dry_run: bool
    nodes: dict[str, int]
    num_bytes: int
    ended_here: int
    left: int
    reason: str = ""


class DrainRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """What is in DRAM here and nowhere else is copied to node `to`, or to whoever has room, the
    last used first, for `seconds` at most."""

    to: NodeText | None = None
    seconds: CopySeconds = 30.0


class DrainAnswer(Struct, frozen=True):
    """`flushed`: all that the NVMe tier takes is there; false without one. `in_flight`: entries
    still being written. `copied`: entries that other nodes took; `left`: those that still are in
    DRAM here and nowhere else; `reason`: the first why."""

    draining: bool
    flushed: bool
    in_flight: int
    copied: int = 0
    left: int = 0
    reason: str = ""


class TenantsAnswer(Struct, frozen=True):
    """At most 1000. A tenant is shown as a digest of its salt, never the salt."""

    tenants: list[TenantUsage]


class ConfigRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """New values, as text that the command line takes."""

    settings: Annotated[dict[str, KeyText], Meta(max_length=64)]


class ConfigAnswer(Struct, frozen=True):
    """Settings in force, as text that the command line takes, and those that PATCH changes."""

    settings: dict[str, str]
    changeable: list[str]


class LiveMark(Struct, frozen=True):
    """The snapshot ended; what follows happened after event `seq`."""

    seq: int

"""What the admin routes take and answer."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from ...store import EntryInfo, Evicted

TierName = Literal["dram", "nvme"]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Limit = Annotated[int, Meta(ge=1, le=1000)]
ByteCount = Annotated[int, Meta(ge=0, le=1 << 62)]
KeyText = Annotated[str, Meta(max_length=4096)]


class BlocksQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`namespace` (hex digest; empty: string entries), `key_prefix` like a key."""

    namespace: KeyText | None = None
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


class RemoveAnswer(Struct, frozen=True):
    removed: int


class EvictRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """All conditions given must hold; `bytes` stops once so much is freed (of each tier).
    `tier`: only that tier's copies; none: every tier's (those of dram with `older_than_s`, which
    the nvme tier does not know)."""

    tier: TierName | None = None
    namespace: KeyText | None = None
    keys: Annotated[tuple[KeyText, ...], Meta(max_length=16384)] | None = None
    key_prefix: KeyText | None = None
    bytes: ByteCount | None = None
    older_than_s: Seconds | None = None
    dry_run: bool = False


class EvictAnswer(Struct, frozen=True):
    dry_run: bool
    tiers: dict[str, Evicted]


class ClearRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """`namespace` (hex digest; empty: string entries); none: everything."""

    namespace: KeyText | None = None
    dry_run: bool = False


class ClearAnswer(Struct, frozen=True):
    dry_run: bool
    entries: int


class ConfigAnswer(Struct, frozen=True):
    """Settings in force, as text that the command line takes."""

    settings: dict[str, str]


class LiveMark(Struct, frozen=True):
    """The snapshot ended; what follows happened after event `seq`."""

    seq: int

"""KV events: what an instance gained and lost, in order, so that others know where a block
lies.

A stream begins with a snapshot and goes on without a gap: every event's `seq` is one more than the
last. A reader that sees a hole resyncs from a new snapshot. `source` is the daemon that publishes;
`instance` is where the bytes lie (the daemon for `dram`, an engine for `hbm`).
"""

from __future__ import annotations

from typing import Literal

import msgspec

EventKind = Literal["stored", "removed", "cleared"]


class KvEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """`entries` are hex entry ids for kv blocks (b"k" + block key + shard) of `namespace` (digest,
    hex); string entries are published too, with namespace "". `cleared` with no entries:
    everything of that (instance, tier), or of that namespace there."""

    seq: int
    kind: EventKind
    instance: str
    tier: str
    namespace: str = ""
    entries: tuple[str, ...] = ()
    parent: str = ""  # block key before the first of `entries`, hex, when they are one chain


class SnapshotBegin(msgspec.Struct, frozen=True):
    """First message of a stream. `seq` is the last event already contained in the snapshot."""

    source: str
    seq: int

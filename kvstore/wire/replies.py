"""What a store answers."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from .message import Message


class Challenge(Message, frozen=True, tag=64):
    nonce: bytes


class Welcome(Message, frozen=True, tag=65):
    """With the slot table's descriptor over a unix socket (`shared_memory` true)."""

    version: int
    instance: str
    boot_id: str
    layout_version: int
    shared_memory: bool
    segment_sizes: list[int]
    slot_table_bytes: int
    inline_bytes: int  # puts up to this size go through the socket
    max_entry_bytes: int
    run_bytes: int = 0  # runs a client should ask for (ReserveRun); 0: it may have none
    poll_seconds: float = 0.0  # how long a client on this machine looks for a reply awake
    sums_may_follow: bool = False  # the checksums of a Put may come behind its values


class Ok(Message, frozen=True, tag=66):
    pass


class Failure(Message, frozen=True, tag=67):
    code: str
    message: str


class PutReply(Message, frozen=True, tag=68):
    results: list[tuple[int, str]]  # PutStatus, reason


class Reserved(Message, frozen=True, tag=69):
    """Per entry: ReserveStatus, slot, generation, segment, offset, and whether this client may map
    it writable."""

    results: list[tuple[int, int, int, int, int, bool]]
    reason: str = ""


class LookupReply(Message, frozen=True, tag=70):
    found: list[tuple[int, int, int, int, int, int] | None]  # Located
    ticket: bytes = b""
    # between nodes: seconds until each ends, if it does
    lifetimes: list[float | None] = msgspec.field(default_factory=list)
    # of those not found: so many lie on disk, and there was no room for them beside the others
    beyond: int = 0
    # between nodes: 1 for each that is soft pinned
    soft_pins: bytes = b""


class BlockEntry(NamedTuple):
    slot: int
    generation: int
    segment: int
    offset: int
    shard: int  # index into BlocksReply.shards
    extents: int  # complete layer extents: all of them unless it is still being written or filled
    tier: str  # where its bytes come from


class BlocksReply(Message, frozen=True, tag=71):
    """Leading blocks that hit: for each, the entries that together cover what was asked (see
    layout.reshard). `checksums` holds, entry after entry, one u64 LE for each layer extent of the
    shard (0 where it is not known yet: AwaitExtents tells it then)."""

    blocks: list[list[BlockEntry]]
    shards: list[bytes]
    checksums: bytes
    ticket: bytes = b""
    # one a block: how it comes to our DRAM; empty: all lay there
    transports: list[str] = msgspec.field(default_factory=list)
    # one a block: node that has it, if it is another; empty: none comes from one
    peers: list[str] = msgspec.field(default_factory=list)


class GetReply(Message, frozen=True, tag=72):
    sizes: list[int]  # -1: a miss
    checksums: list[int]


class ExistsReply(Message, frozen=True, tag=73):
    found: bytes  # one 0/1 byte a key


class CountReply(Message, frozen=True, tag=74):
    count: int
    removed: bytes = b""  # one 0/1 byte an entry of a Remove; of older stores none


class SegmentReply(Message, frozen=True, tag=75):
    segment: int
    num_bytes: int
    writable: bool


class NamespaceReply(Message, frozen=True, tag=76):
    namespace: int


class StatsReply(Message, frozen=True, tag=77):
    stats: bytes  # JSON, the body of GET /v1/stats


class ExtentsReply(Message, frozen=True, tag=79):
    """One 0/1 byte an entry: the extent is complete, or the entry ended before it was. `checksums`:
    one u64 LE an entry, the extent's xxh3-64 (0 where it is not complete)."""

    complete: bytes
    checksums: bytes


class RevokeSegment(Message, frozen=True, tag=78):
    """Unasked (request id 0): the daemon wants a granted segment back; answer with ReleaseSegment
    when convenient."""

    segment: int


class RunReply(Message, frozen=True, tag=80):
    """One element an entry; slot and generation are 0 unless it was STORED: then they are where it
    lies. `reason`: the first there is stands for all."""

    statuses: bytes  # PutStatus, u8 each
    slots: bytes  # u32 LE each
    generations: bytes  # u32 LE each
    reason: str = ""


class LocateReply(Message, frozen=True, tag=81):
    """One element an entry; slot 0: not found."""

    slots: bytes  # u32 LE each
    generations: bytes  # u32 LE each
    beyond: int = 0  # as in LookupReply


Reply = (
    Challenge
    | Welcome
    | Ok
    | Failure
    | PutReply
    | Reserved
    | LookupReply
    | BlocksReply
    | GetReply
    | ExistsReply
    | CountReply
    | SegmentReply
    | NamespaceReply
    | StatsReply
    | RevokeSegment
    | ExtentsReply
    | RunReply
    | LocateReply
)

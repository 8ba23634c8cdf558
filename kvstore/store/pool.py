"""The DRAM tier's segments, and who may write to each.

  FREE ──daemon needs room──► DAEMON ──empty──► FREE
    └──grant──► GRANTED ──client released it or is gone──► ORPHANED ──empty──► FREE
                   └──(nothing in it)──► FREE

An arena is what one writer allocates from and evicts in: the daemon's own, or one a client process.
An orphaned segment stays in the eviction order of the arena that filled it, and ends by being
emptied. Once that arena's client is gone, the daemon allocates in what is free of it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from moontide.transfer import Segment
from moontide.transfer.types import Instance

from .allocator import OffsetAllocator
from .eviction import EvictionPolicy
from .types import PoolSettings

_NONE_FAILED = 1 << 62
"""More than any request."""
RESERVE_RATIO = 1 / 8
"""Share of the segments, one at least, that clients cannot take from daemon-written puts."""


class Holder(enum.Enum):
    FREE = 0
    DAEMON = 1
    GRANTED = 2
    ORPHANED = 3


class PoolSegment:
    """One segment with its space. `arena` is None while FREE; `asked`: its client was asked to give
    it back, so nothing new goes there."""

    __slots__ = ("allocator", "arena", "asked", "failed_bytes", "holder", "index", "memory")

    def __init__(self, index: int, memory: Segment) -> None:
        self.index = index
        self.memory = memory
        self.allocator = OffsetAllocator(memory.num_bytes)
        self.holder = Holder.FREE
        self.arena: Arena | None = None
        self.asked = False
        self.failed_bytes = _NONE_FAILED  # smallest request that failed since a free

    @property
    def is_abandoned(self) -> bool:
        """Whether it is orphaned, and the client that filled it allocates nowhere any more."""
        arena = self.arena
        return self.holder is Holder.ORPHANED and arena is not None and not arena.segments

    def allocate(self, num_bytes: int) -> int | None:
        if num_bytes >= self.failed_bytes or self.asked:
            return None
        offset = self.allocator.allocate(num_bytes)
        if offset is None:
            self.failed_bytes = num_bytes
        return offset


class Arena:
    """The segments one writer allocates from (`segments`), and the eviction order of all it
    filled, orphaned ones included. `client` is None for the daemon's."""

    __slots__ = ("client", "policy", "segments")

    def __init__(self, client: Instance | None, policy: EvictionPolicy) -> None:
        self.client = client
        self.policy = policy
        self.segments: list[PoolSegment] = []  # the last that had room comes first

    def allocate(self, num_bytes: int) -> tuple[int, int] | None:
        """(segment index, offset) without evicting."""
        for position, segment in enumerate(self.segments):
            offset = segment.allocate(num_bytes)
            if offset is not None:
                if position:
                    self.segments.insert(0, self.segments.pop(position))
                return segment.index, offset
        return None


class Pool:
    """Raises SegmentUnavailable when the tier cannot be had whole."""

    def __init__(self, settings: PoolSettings, new_policy: Callable[[], EvictionPolicy]) -> None:
        self.settings = settings
        self._new_policy = new_policy
        self.segments: list[PoolSegment] = []
        try:
            for index in range(settings.num_segments):
                memory = Segment(settings.segment_bytes, name=f"moontide-dram-{index}")
                self.segments.append(PoolSegment(index, memory))
        except BaseException:
            self.close()
            raise
        self.free = self.segments[::-1]
        self._orphaned: list[PoolSegment] = []
        self.daemon = Arena(None, new_policy())
        self.arenas: dict[Instance, Arena] = {}
        self.reserve_segments = max(1, int(len(self.segments) * RESERVE_RATIO))

    def close(self) -> None:
        for segment in self.segments:
            segment.memory.close()

    @property
    def capacity_bytes(self) -> int:
        return len(self.segments) * self.settings.segment_bytes

    @property
    def used_bytes(self) -> int:
        return sum(segment.allocator.used_bytes for segment in self.segments)

    def arena_of(self, client: Instance) -> Arena:
        """The client's arena; a new one has no segments and is forgotten unless it gets some."""
        return self.arenas.get(client) or Arena(client, self._new_policy())

    def all_arenas(self) -> list[Arena]:
        """The daemon's first."""
        return [self.daemon, *self.arenas.values()]

    def holds_grants(self, client: Instance) -> bool:
        arena = self.arenas.get(client)
        return arena is not None and bool(arena.segments)

    def num_held(self, holder: Holder) -> int:
        return sum(segment.holder is holder for segment in self.segments)

    def may_grant(self, about_to_be_free: int = 0) -> bool:
        """True while a client may take a segment that is free or the daemon's and leave enough."""
        available = len(self.free) + len(self.daemon.segments) + about_to_be_free
        return available > self.reserve_segments

    def attach_free(self, arena: Arena) -> bool:
        """Gives the arena a free segment if there is one for it."""
        if not self.free or (arena.client is not None and not self.may_grant()):
            return False
        segment = self.free.pop()
        segment.arena = arena
        segment.holder = Holder.DAEMON if arena.client is None else Holder.GRANTED
        arena.segments.insert(0, segment)
        arena.policy.capacity_bytes += segment.memory.num_bytes
        if arena.client is not None:
            self.arenas[arena.client] = arena
        return True

    def allocate_orphaned(self, num_bytes: int) -> tuple[int, int] | None:
        """As `Arena.allocate`, for the daemon: in what clients that are gone have left."""
        for segment in self._orphaned:
            if segment.is_abandoned:
                offset = segment.allocate(num_bytes)
                if offset is not None:
                    return segment.index, offset
        return None

    def release_extent(self, index: int, offset: int, taken: int) -> None:
        """Frees `taken` bytes of live extents; an empty segment that nobody else can write becomes
        free."""
        segment = self.segments[index]
        segment.allocator.release(offset, taken)
        segment.failed_bytes = _NONE_FAILED
        if not segment.allocator.used_bytes and segment.holder is not Holder.GRANTED:
            self._detach(segment)

    def keep_only(self, index: int, live: list[tuple[int, int]]) -> None:
        """Frees all extents of a segment in use but `live` (offset, occupied bytes) at once."""
        segment = self.segments[index]
        segment.allocator.keep_only(live)
        segment.failed_bytes = _NONE_FAILED
        if not live and segment.holder is not Holder.GRANTED:
            self._detach(segment)

    def orphan(self, segment: PoolSegment) -> None:
        """The client can no longer write a granted segment."""
        assert segment.arena is not None
        segment.arena.segments.remove(segment)
        segment.holder = Holder.ORPHANED
        segment.asked = False
        self._orphaned.append(segment)
        if not segment.allocator.used_bytes:
            self._detach(segment)

    def end_arena(self, client: Instance) -> list[int]:
        """The client's process is gone: all it held is orphaned. Returns those segments."""
        arena = self.arenas.get(client)
        held = list(arena.segments) if arena else []
        for segment in held:
            self.orphan(segment)
        return [segment.index for segment in held]

    def _detach(self, segment: PoolSegment) -> None:
        arena = segment.arena
        assert arena is not None
        for place in (arena.segments, self._orphaned):
            if segment in place:
                place.remove(segment)
        arena.policy.capacity_bytes -= segment.memory.num_bytes
        segment.arena, segment.holder = None, Holder.FREE
        self.free.append(segment)
        if arena.client is not None and not arena.policy.capacity_bytes:
            del self.arenas[arena.client]

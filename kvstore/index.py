"""Which instances hold which blocks, learned from the event streams of the store daemons.

One stream a daemon: `begin` (a snapshot replaces all the stream said before) → `apply` … → `live` →
`apply` … with sequence numbers one apart. Any other number is a RESYNC: the caller subscribes anew.

            begin                live                 seq ≠ expected
   (none) ────────► SNAPSHOT ────────────► LIVE ─────────────────────► BROKEN
                        ▲                                                 │
                        └──────────────────────── begin ──────────────────┘

What a broken stream said stays until its next snapshot: a false hit is found on read.

A block counts at an instance only when its shards there cover the namespace's whole layout, and a
prefix ends at the first block that does not. Per (instance, tier, namespace) the blocks are one
`dict[key, bitmask of shards]`: about 110 bytes a block, untracked by the collector, dropped at
once. String entries are kept too where `max_strings` says so (string_index.py).
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .errors import InvalidRequest
from .events import KvEvent, SnapshotBegin
from .keys import BLOCK_KEY_BYTES, BlockKey, EntryId, block_key_of, shard_of
from .layout import SHARD_BYTES, KVLayout, Shard, reshard
from .string_index import Location, StringIndex

__all__ = [
    "KvEvent",
    "Phase",
    "PrefixIndex",
    "PrefixMatch",
    "SnapshotBegin",
    "StreamStatus",
    "StreamView",
]

MAX_SHARDS = 1024
"""Most distinct shards of one namespace."""
MAX_NAMESPACES = 4096
MAX_MASKS = 65536
"""Most answers kept, a namespace, to the question whether a set of shards covers the layout."""
MAX_COVERAGES = 4096
"""Most (namespace, layout, coverage) for which such answers are kept."""
MAX_LOCATIONS = 65536
"""Most (stream, namespace, instance, tier) combinations."""

WHOLE = b""
"""Stands for the shard where an event names a block without one."""
TIER_ORDER = ("hbm", "dram", "nvme")
"""Warmest first: a block held in several tiers counts for the warmest."""


class StreamStatus(enum.Enum):
    OK = "ok"
    RESYNC = "resync"


class Phase(enum.Enum):
    SNAPSHOT = "snapshot"
    LIVE = "live"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """Leading blocks an instance holds, and how many of them in which tier."""

    num_blocks: int
    by_tier: dict[str, int]


@dataclass(frozen=True, slots=True)
class StreamView:
    """State of one stream, for status pages."""

    source: str
    phase: Phase
    seq: int
    num_blocks: int
    resyncs: int
    skipped: int  # entries left out: the index was full, or their shard is none


Blocks = dict[bytes, int]
_Question = tuple[str, bytes, tuple[Shard, ...]]
"""(namespace, layout digest, coverage)"""


@dataclass(slots=True)
class _Stream:
    source: str
    seq: int
    phase: Phase = Phase.SNAPSHOT
    resyncs: int = 0
    skipped: int = 0
    num_blocks: int = 0
    namespaces: dict[str, dict[Location, Blocks]] = field(default_factory=dict)

    def blocks(self) -> Iterator[Blocks]:
        for locations in self.namespaces.values():
            yield from locations.values()


class PrefixIndex:
    """Bounded by `max_blocks` (block, location) pairs and `max_strings` (string entry, location)
    pairs: beyond them new ones are left out and counted, so the index may miss a hit but never
    invents one. Not thread-safe."""

    def __init__(self, max_blocks: int = 4_000_000, max_strings: int = 0) -> None:
        self.max_blocks = max_blocks
        self._strings = StringIndex(max_strings)
        self.num_blocks = 0
        self._num_locations = 0
        self._streams: dict[str, _Stream] = {}
        self._shards: dict[str, dict[bytes, int]] = {}  # namespace → packed shard → bit
        self._covers: dict[_Question, dict[int, bool]] = {}  # → mask → whether it covers

    # -- what the streams say -------------------------------------------------------

    def begin(self, stream: str, snapshot: SnapshotBegin) -> None:
        """A snapshot starts: everything `stream` said before is dropped."""
        before = self._streams.get(stream)
        self.drop_stream(stream)
        self._streams[stream] = _Stream(
            snapshot.source, snapshot.seq, resyncs=before.resyncs if before else 0
        )

    def live(self, stream: str, seq: int) -> StreamStatus:
        """The snapshot is complete."""
        state = self._streams.get(stream)
        if state is None or state.phase is not Phase.SNAPSHOT or seq != state.seq:
            return self._break(state)
        state.phase = Phase.LIVE
        return StreamStatus.OK

    def apply(self, stream: str, event: KvEvent) -> StreamStatus:
        """Takes one event in. RESYNC when its number is not the expected one, in which case it
        changed nothing. Raises InvalidRequest on an event that is malformed."""
        state = self._streams.get(stream)
        if state is None or state.phase is Phase.BROKEN:
            return StreamStatus.RESYNC
        expected = state.seq if state.phase is Phase.SNAPSHOT else state.seq + 1
        if event.seq != expected:
            return self._break(state)
        entries = [_split_entry(entry) for entry in event.entries if not _is_string(entry)]
        strings: list[bytes] = []
        if self._strings.max_entries:
            strings = [_unhex(entry) for entry in event.entries if _is_string(entry)]
        state.seq = event.seq
        if strings:
            self._apply_strings(stream, state, event, strings)
        if event.kind == "stored":
            self._store(state, event, entries)
        elif event.kind == "removed":
            self._remove(state, event, entries)
        elif not event.entries:
            self._clear(stream, state, event)
        return StreamStatus.OK

    def drop_stream(self, stream: str) -> None:
        """Forgets a daemon and everything it said."""
        state = self._streams.pop(stream, None)
        if state is not None:
            self.num_blocks -= state.num_blocks
            self._num_locations -= sum(map(len, state.namespaces.values()))
            self._forget_unused(set(state.namespaces))
            self._strings.drop_stream(stream)

    # -- questions ------------------------------------------------------------------

    def longest_prefix(
        self,
        namespace: str,
        keys: Sequence[BlockKey],
        layout: KVLayout,
        coverage: tuple[Shard, ...] | None = None,
    ) -> dict[str, PrefixMatch]:
        """Per instance that holds the first block of `keys`: how far it goes without a hole, its
        shards covering `coverage` (None: the whole layout). `namespace` is the digest in hex, as
        events carry it."""
        parts = layout.whole() if coverage is None else coverage
        matches: dict[str, PrefixMatch] = {}
        for state in self._streams.values():
            tiers_of: dict[str, list[str]] = {}
            locations = state.namespaces.get(namespace, {})
            for instance, tier in locations:
                tiers_of.setdefault(instance, []).append(tier)
            for instance, tiers in tiers_of.items():
                warmest_first = sorted(tiers, key=_warmth)
                held = [(tier, locations[instance, tier]) for tier in warmest_first]
                match = self._walk(namespace, keys, layout, parts, held)
                known = matches.get(instance)
                if match.num_blocks and (known is None or known.num_blocks < match.num_blocks):
                    matches[instance] = match
        return matches

    def holders(self, entry: EntryId) -> list[Location]:
        """(instance, tier) of whoever holds a string entry, as far as `max_strings` let it in."""
        return self._strings.holders(entry)

    def block_holders(self, namespace: str, entry: EntryId) -> set[str]:
        """Stores that hold this shard of a block, in whatever tier of theirs."""
        bit = self._shards.get(namespace, {}).get(shard_of(entry))
        if bit is None:
            return set()
        key = block_key_of(entry)
        return {
            instance
            for state in self._streams.values()
            for (instance, tier), blocks in state.namespaces.get(namespace, {}).items()
            if tier != "hbm" and blocks.get(key, 0) & bit
        }

    def namespaces_of(self, key: BlockKey) -> set[str]:
        """Of the stores that have a shard of this block (digests, hex): one, unless keys lie."""
        return {
            namespace
            for state in self._streams.values()
            for namespace, locations in state.namespaces.items()
            if any(key in blocks for blocks in locations.values())
        }

    def streams(self) -> dict[str, StreamView]:
        return {
            name: StreamView(s.source, s.phase, s.seq, s.num_blocks, s.resyncs, s.skipped)
            for name, s in self._streams.items()
        }

    def check_integrity(self) -> None:
        """Asserts that the counters equal what a walk over the index finds."""
        for state in self._streams.values():
            assert state.num_blocks == sum(map(len, state.blocks()))
            assert all(locations for locations in state.namespaces.values())
            assert all(state.blocks())
            assert state.namespaces.keys() <= self._shards.keys()
        streams = self._streams.values()
        assert self.num_blocks == sum(state.num_blocks for state in streams) <= self.max_blocks
        assert self._num_locations == sum(
            len(locations) for state in streams for locations in state.namespaces.values()
        )
        assert self._shards.keys() == {name for state in streams for name in state.namespaces}
        self._strings.check_integrity()

    # -- inside ---------------------------------------------------------------------

    def _break(self, state: _Stream | None) -> StreamStatus:
        if state is not None and state.phase is not Phase.BROKEN:
            state.phase = Phase.BROKEN
            state.resyncs += 1
        return StreamStatus.RESYNC

    def _store(self, state: _Stream, event: KvEvent, entries: list[tuple[bytes, bytes]]) -> None:
        for key, shard in entries:
            blocks = self._location(state, event.namespace, (event.instance, event.tier))
            bit = self._bit(event.namespace, shard) if blocks is not None else None
            if blocks is None or bit is None:
                state.skipped += 1
                continue
            mask = blocks.get(key)
            if mask is not None:
                blocks[key] = mask | bit
            elif self.num_blocks < self.max_blocks:
                blocks[key] = bit
                state.num_blocks += 1
                self.num_blocks += 1
            else:
                state.skipped += 1
        self._drop_if_empty(state, event.namespace, (event.instance, event.tier))

    def _remove(self, state: _Stream, event: KvEvent, entries: list[tuple[bytes, bytes]]) -> None:
        location = (event.instance, event.tier)
        blocks = state.namespaces.get(event.namespace, {}).get(location)
        if blocks is None:
            return
        bits = self._shards[event.namespace]
        for key, shard in entries:
            mask = blocks.get(key, 0)
            rest = mask & ~bits.get(shard, 0)
            if rest:
                blocks[key] = rest
            elif mask:
                del blocks[key]
                state.num_blocks -= 1
                self.num_blocks -= 1
        self._drop_if_empty(state, event.namespace, location)

    def _apply_strings(
        self, stream: str, state: _Stream, event: KvEvent, entries: list[bytes]
    ) -> None:
        location = (event.instance, event.tier)
        if event.kind == "removed":
            self._strings.remove(stream, location, entries)
        elif event.kind == "stored":
            state.skipped += self._strings.store(stream, location, entries)

    def _clear(self, stream: str, state: _Stream, event: KvEvent) -> None:
        if not event.namespace:
            self._strings.clear(stream, (event.instance, event.tier))
        namespaces = [event.namespace] if event.namespace else list(state.namespaces)
        for namespace in namespaces:
            self._drop_location(state, namespace, (event.instance, event.tier))

    def _location(self, state: _Stream, namespace: str, location: Location) -> Blocks | None:
        """The blocks of a location, made on first use; None beyond the bounds."""
        blocks = state.namespaces.get(namespace, {}).get(location)
        if blocks is not None:
            return blocks
        known = namespace in self._shards
        if self._num_locations >= MAX_LOCATIONS or (
            not known and len(self._shards) >= MAX_NAMESPACES
        ):
            return None
        self._shards.setdefault(namespace, {})
        self._num_locations += 1
        return state.namespaces.setdefault(namespace, {}).setdefault(location, {})

    def _bit(self, namespace: str, shard: bytes) -> int | None:
        """The shard's bit, given on first use; None beyond the bound or for an empty shard."""
        bits = self._shards[namespace]
        bit = bits.get(shard)
        if bit is None and len(bits) < MAX_SHARDS and _is_shard(shard):
            bit = bits[shard] = 1 << len(bits)
        return bit

    def _drop_if_empty(self, state: _Stream, namespace: str, location: Location) -> None:
        if not state.namespaces.get(namespace, {}).get(location, True):
            self._drop_location(state, namespace, location)

    def _drop_location(self, state: _Stream, namespace: str, location: Location) -> None:
        locations = state.namespaces.get(namespace, {})
        blocks = locations.pop(location, None)
        if blocks is None:
            return
        self._num_locations -= 1
        state.num_blocks -= len(blocks)
        self.num_blocks -= len(blocks)
        if not locations:
            del state.namespaces[namespace]
            self._forget_unused({namespace})

    def _forget_unused(self, namespaces: set[str]) -> None:
        """Shard bits live as long as some stream holds a block of the namespace."""
        unused = {
            name
            for name in namespaces
            if not any(name in state.namespaces for state in self._streams.values())
        }
        for name in unused:
            self._shards.pop(name, None)
        if unused:
            self._covers = {k: v for k, v in self._covers.items() if k[0] not in unused}

    def _walk(
        self,
        namespace: str,
        keys: Sequence[BlockKey],
        layout: KVLayout,
        parts: tuple[Shard, ...],
        held: list[tuple[str, Blocks]],
    ) -> PrefixMatch:
        by_tier: dict[str, int] = {}
        answers = self._answers((namespace, layout.digest, parts))
        num_blocks = 0
        for key in keys:
            union = 0
            for tier, blocks in held:
                union |= blocks.get(key, 0)
                complete = answers.get(union)
                if complete is None:
                    complete = self._complete(namespace, layout, parts, union, answers)
                if complete:
                    by_tier[tier] = by_tier.get(tier, 0) + 1
                    break
            else:
                break
            num_blocks += 1
        return PrefixMatch(num_blocks, by_tier)

    def _answers(self, question: _Question) -> dict[int, bool]:
        if question not in self._covers and len(self._covers) >= MAX_COVERAGES:
            self._covers.clear()
        return self._covers.setdefault(question, {})

    def _complete(
        self,
        namespace: str,
        layout: KVLayout,
        parts: tuple[Shard, ...],
        mask: int,
        answers: dict[int, bool],
    ) -> bool:
        """Do the shards of `mask` together cover `parts`? Few masks exist: the answer is kept in
        `answers`."""
        packed = [shard for shard, bit in self._shards[namespace].items() if mask & bit]
        complete = WHOLE in packed
        if not complete:
            stored = list(map(Shard.unpack, packed))
            complete = all(reshard(layout, 1, stored, part) is not None for part in parts)
        if len(answers) >= MAX_MASKS:
            answers.clear()
        answers[mask] = complete
        return complete


def _warmth(tier: str) -> int:
    return TIER_ORDER.index(tier) if tier in TIER_ORDER else len(TIER_ORDER)


def _is_shard(data: bytes) -> bool:
    if data == WHOLE:
        return True
    try:
        Shard.unpack(data)
    except InvalidRequest:
        return False
    return True


def _is_string(entry: str) -> bool:
    return entry.startswith("73")  # "s" in hex: a string entry, no part of any prefix


def _split_entry(entry: str) -> tuple[bytes, bytes]:
    """(block key, packed shard) of a KV entry id in hex; an id without a shard is the whole block,
    as engines tell it of their device caches."""
    data = _unhex(entry)
    sizes = (1 + BLOCK_KEY_BYTES, 1 + BLOCK_KEY_BYTES + SHARD_BYTES)
    if len(data) not in sizes or data[:1] != b"k":
        raise InvalidRequest(f"event names entry {entry[:60]!r}, which is not a KV entry id")
    return data[1 : 1 + BLOCK_KEY_BYTES], data[1 + BLOCK_KEY_BYTES :]


def _unhex(entry: str) -> bytes:
    try:
        return bytes.fromhex(entry)
    except ValueError as error:
        raise InvalidRequest(f"event names entry {entry[:60]!r}, which is not hex") from error

"""A trace against an eviction policy alone: the store's own policy classes over blocks of one unit,
without memory, clock or process.

A request hits its longest cached prefix, counted before it changes anything. Its hits are touched
last block first; what is missing is stored, as a store publishes a chain: last block first, then
what it hangs on is refreshed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...slots import LENGTH, WORDS
from ...store.chains import Chains
from ...store.eviction import POLICIES, EvictionName, Links
from ...store.eviction.names import PROTECTED_RATIO
from ...store.slot_table import NO_SLOT
from .trace import TRACE_BLOCK_TOKENS, TraceRequest, prefill_seconds


@dataclass(slots=True)
class Tally:
    """What a number of requests asked for and hit; seconds of prefill without a store, and with."""

    blocks: int = 0
    hits: int = 0
    cold_seconds: float = 0.0
    seconds: float = 0.0

    @property
    def hit_ratio(self) -> float:
        return self.hits / self.blocks if self.blocks else 0.0

    @property
    def saved_ratio(self) -> float:
        """Share of prefill time saved."""
        return 1.0 - self.seconds / self.cold_seconds if self.cold_seconds else 0.0

    def add(self, request: TraceRequest, hits: int) -> None:
        self.blocks += len(request.hash_ids)
        self.hits += hits
        cached = min(hits * TRACE_BLOCK_TOKENS, request.input_length)
        self.cold_seconds += prefill_seconds(request.input_length, 0)
        self.seconds += prefill_seconds(request.input_length, cached)

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.blocks + other.blocks,
            self.hits + other.hits,
            self.cold_seconds + other.cold_seconds,
            self.seconds + other.seconds,
        )


@dataclass(frozen=True, slots=True)
class Replayed:
    """By halves of the trace's requests."""

    first: Tally
    second: Tally

    @property
    def whole(self) -> Tally:
        return self.first + self.second


class PolicyCache:
    """A cache of `capacity` blocks of one byte that evicts by a policy."""

    def __init__(self, policy: EvictionName, capacity: int) -> None:
        self._words = memoryview(bytearray(8 * WORDS * (capacity + 1))).cast("Q")
        self._chains = Chains()
        self._links = Links(self._words, self._chains)
        for column in (*self._chains.columns(), *self._links.columns()):
            column.frombytes(bytes(column.itemsize * (capacity + 1)))
        for slot in range(1, capacity + 1):
            self._words[slot * WORDS + LENGTH] = 1
        self.policy = POLICIES[policy](self._links, PROTECTED_RATIO)
        self.policy.capacity_bytes = capacity
        self._free = list(range(capacity, 0, -1))
        self._slots: dict[int, int] = {}  # block → slot
        self._blocks = [0] * (capacity + 1)

    def __contains__(self, block: int) -> bool:
        return block in self._slots

    def request(self, blocks: Sequence[int]) -> int:
        """Number of leading blocks that were here; afterwards all are, as far as there is room."""
        slots = [self._slots.get(block, NO_SLOT) for block in blocks]
        hits = next((n for n, slot in enumerate(slots) if slot == NO_SLOT), len(blocks))
        for slot in reversed(slots):
            if slot != NO_SLOT:
                self.policy.touch(slot)
        self._store(blocks)
        return hits

    def _store(self, blocks: Sequence[int]) -> None:
        new: list[int] = []
        parent = NO_SLOT
        followed: dict[int, None] = {}
        for block in blocks:
            slot = self._slots.get(block, NO_SLOT)
            if slot == NO_SLOT:
                slot = self._take(block)
                if slot == NO_SLOT:
                    break
                new.append(slot)
                if parent != NO_SLOT:
                    self._chains.link(slot, parent)
            else:
                followed[slot] = None
            parent = slot
        if new:
            for slot in reversed(new):
                self.policy.insert(slot)
            self._refresh(reversed(followed))

    def _take(self, block: int) -> int:
        if not self._free:
            victim = self.policy.coldest()
            if victim == NO_SLOT:
                return NO_SLOT
            self.policy.remove(victim)
            self._chains.unlink(victim)
            del self._slots[self._blocks[victim]]
            self._free.append(victim)
        slot = self._free.pop()
        self._slots[block], self._blocks[slot] = slot, block
        return slot

    def _refresh(self, slots: Iterable[int]) -> None:
        for slot in slots:
            self.policy.refresh(slot)


def replay_policy(
    requests: Sequence[TraceRequest], policy: EvictionName, capacity: int
) -> Replayed:
    cache = PolicyCache(policy, capacity)
    halves = Tally(), Tally()
    for number, request in enumerate(requests):
        half = halves[number >= len(requests) // 2]
        half.add(request, cache.request(request.hash_ids))
    return Replayed(*halves)

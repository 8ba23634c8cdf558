"""An eviction policy without a store around it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from moontide.kvstore.slots import LENGTH, WORDS
from moontide.kvstore.store.chains import Chains
from moontide.kvstore.store.eviction import POLICIES, EvictionName, EvictionPolicy, Links
from moontide.kvstore.store.slot_table import NO_SLOT

SLOTS = 64
PROTECTED_RATIO = 0.2


class Rig:
    """A policy over slots 1…SLOTS of one byte each, in an arena of `capacity` bytes."""

    def __init__(self, name: EvictionName, capacity: int = SLOTS) -> None:
        words = memoryview(bytearray(8 * WORDS * (SLOTS + 1))).cast("Q")
        self.chains = Chains()
        self.links = Links(words, self.chains)
        for column in (*self.chains.columns(), *self.links.columns()):
            column.frombytes(bytes(column.itemsize * (SLOTS + 1)))
        for slot in range(1, SLOTS + 1):
            words[slot * WORDS + LENGTH] = 1
        self.policy: EvictionPolicy = POLICIES[name](self.links, PROTECTED_RATIO)
        self.policy.capacity_bytes = capacity

    def insert(self, *slots: int) -> None:
        for slot in slots:
            self.policy.insert(slot)

    def insert_chain(self, slots: list[int]) -> None:
        """As a store does: linked first block first, inserted last block first."""
        for parent, slot in pairwise(slots):
            self.chains.link(slot, parent)
        self.insert(*reversed(slots))

    def evict(self) -> int:
        slot = self.policy.coldest()
        if slot != NO_SLOT:
            self.policy.remove(slot)
            self.chains.unlink(slot)
        return slot

    def drain(self) -> list[int]:
        return list(iter(self.evict, NO_SLOT))

    def check(self) -> None:
        assert self.policy.check_integrity() == []


def hit(rig: Rig, slots: Iterable[int]) -> None:
    for slot in slots:
        rig.policy.touch(slot)

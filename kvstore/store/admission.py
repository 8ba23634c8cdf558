"""Store admission: which blocks are worth storing when a client offers them.

all          every one
second-use   one that was offered before: most prompts are seen once
depth:N      the first N blocks of a chain, which prompts share; deeper ones on second use

What was offered is remembered in two Bloom filters of one generation each: the older is dropped
when the newer is full, so memory is bounded and an old offer is forgotten. A false "offered before"
stores a block early; nothing else depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from xxhash import xxh3_128_intdigest

from .catalog import Catalog

OFFERS_REMEMBERED = 1 << 20
"""Of each generation."""
_BITS_AN_OFFER = 16
_PROBES = 4
_PROBE_BITS = 32

AdmissionKind = Literal["all", "second-use", "depth"]


@dataclass(frozen=True, slots=True)
class AdmissionRule:
    kind: AdmissionKind = "all"
    num_blocks: int = 0  # of depth


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """`of_namespace` by digest, hex."""

    default: AdmissionRule = AdmissionRule()
    of_namespace: Mapping[str, AdmissionRule] = field(default_factory=dict)


class SeenEntries:
    """Remembers the last `capacity` entry ids that were added, and up to as many before them."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._num_bits = capacity * _BITS_AN_OFFER
        self._newer = bytearray(self._num_bits // 8)
        self._older = bytearray(self._num_bits // 8)
        self._added = 0

    def add(self, entry: bytes) -> bool:
        """Whether it was added before, as far as is remembered."""
        places = self._places(entry)
        in_newer = all(self._newer[place >> 3] >> (place & 7) & 1 for place in places)
        if in_newer:
            return True
        in_older = all(self._older[place >> 3] >> (place & 7) & 1 for place in places)
        for place in places:
            self._newer[place >> 3] |= 1 << (place & 7)
        self._added += 1
        if self._added >= self._capacity:
            self._older, self._newer = self._newer, bytearray(self._num_bits // 8)
            self._added = 0
        return in_older

    def _places(self, entry: bytes) -> list[int]:
        digest, num_bits = xxh3_128_intdigest(entry), self._num_bits
        mask = (1 << _PROBE_BITS) - 1
        return [
            (digest >> shift & mask) % num_bits
            for shift in range(0, _PROBES * _PROBE_BITS, _PROBE_BITS)
        ]


class Admission:
    """`rules` may be replaced at any time."""

    def __init__(self, catalog: Catalog, *, capacity: int = OFFERS_REMEMBERED) -> None:
        self.rules = AdmissionRules()
        self._catalog = catalog
        self._capacity = capacity
        self._seen: SeenEntries | None = None  # made when a rule first needs it

    def refused(
        self, namespace: str, keys: Sequence[bytes], parent: bytes, shards: Sequence[bytes]
    ) -> frozenset[bytes]:
        """Entry ids among (block, shard) that are not to be stored now, and are remembered."""
        rule = self.rules.of_namespace.get(namespace, self.rules.default)
        if rule.kind == "all":
            return frozenset()
        if self._seen is None:
            self._seen = SeenEntries(self._capacity)
        seen = self._seen
        shallow = self._num_shallow(rule, parent, shards) if rule.kind == "depth" else 0
        committed = self._catalog.visible
        return frozenset(
            [
                entry
                for key in keys[shallow:]
                for entry in [b"k" + key + shard for shard in shards]
                if entry not in committed and not seen.add(entry)
            ]
        )

    def _num_shallow(self, rule: AdmissionRule, parent: bytes, shards: Sequence[bytes]) -> int:
        """How many blocks after `parent` are among the first of their chain. One that follows
        what is not here is deep."""
        if not parent:
            return rule.num_blocks
        committed = self._catalog.committed
        slots = [committed.get(b"k" + parent + shard) for shard in shards]
        found = [slot for slot in slots if slot is not None]
        if not found:
            return 0
        depth = 1 + sum(1 for _ in self._catalog.chains.ancestors(found[0], rule.num_blocks))
        return max(rule.num_blocks - depth, 0)

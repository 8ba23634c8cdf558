"""Who holds how much of one prompt, as a worker would find it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from moontide.kvstore.index import PrefixMatch
from moontide.kvstore.membership import WorkerRecord

REMOTE = "remote"


@dataclass(frozen=True, slots=True)
class Holdings:
    """`matches` has, by instance, the leading blocks it holds; `stores` the instances of stores
    that live."""

    matches: Mapping[str, PrefixMatch]
    stores: Collection[str]

    def store_of(self, record: WorkerRecord) -> str:
        """The store that a worker reads and hands over through; empty where none lives."""
        return record.store_instance if record.store_instance in self.stores else ""

    def cached_tokens(self, record: WorkerRecord) -> dict[str, int]:
        """Leading tokens the worker need not compute, by tier: those in its own device cache, those
        its node's store holds beyond them, and those only other nodes' stores hold beyond these."""
        own = self.matches.get(record.instance)
        node = self.matches.get(record.store_instance)
        covered = own.num_blocks if own else 0
        counts = {"hbm": covered}
        if node is not None:
            for tier, count in node.by_tier.items():
                counts[tier] = min(count, max(node.num_blocks - covered, 0))
                covered += counts[tier]
        if self.store_of(record):  # others are read through it
            others = [
                match.num_blocks for name, match in self.matches.items() if name in self.stores
            ]
            counts[REMOTE] = max(max(others, default=0) - covered, 0)
        return {tier: count * record.block_tokens for tier, count in counts.items() if count}

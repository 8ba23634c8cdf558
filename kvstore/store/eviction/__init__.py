"""Which entry goes first: policies behind one Protocol. A new one is a file and a line here."""

from __future__ import annotations

from collections.abc import Callable

from .cost_aware import CostAwarePolicy
from .fifo import FifoPolicy
from .length_aware import LengthAwarePolicy
from .lfu import LfuPolicy
from .links import OUT, Links, Slots
from .lru import LruPolicy
from .names import EvictionName
from .policy import EvictionPolicy
from .sieve import SievePolicy
from .slru import SlruPolicy

POLICIES: dict[EvictionName, Callable[[Links, float], EvictionPolicy]] = {
    "slru": SlruPolicy,
    "lru": lambda links, _: LruPolicy(links),
    "cost_aware": CostAwarePolicy,
    "fifo": lambda links, _: FifoPolicy(links),
    "lfu": lambda links, _: LfuPolicy(links),
    "sieve": lambda links, _: SievePolicy(links),
    "length_aware": lambda links, _: LengthAwarePolicy(links),
}
"""What makes one from a pool's links and the protected share (of those that have one)."""

__all__ = ["EvictionName", "EvictionPolicy", "Links", "OUT", "POLICIES", "Slots"]

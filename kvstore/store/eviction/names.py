"""Names of the policies, as settings spell them."""

from __future__ import annotations

from typing import Literal

EvictionName = Literal["slru", "lru", "cost_aware", "fifo", "lfu", "sieve", "length_aware"]

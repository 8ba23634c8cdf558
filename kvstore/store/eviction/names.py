"""Names of the policies, as settings spell them, and what settings give them."""

from __future__ import annotations

from typing import Literal

EvictionName = Literal["slru", "lru", "cost_aware", "fifo", "lfu", "sieve", "length_aware"]

PROTECTED_RATIO = 0.2
"""Share of a tier that slru and cost_aware keep for entries hit twice, unless told otherwise."""

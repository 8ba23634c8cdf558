"""Load or recompute: how much of a prefix to load, and when a load is not worth waiting for.

               load                     compute
  sequential   ├── first k blocks ──┤├── the rest of the prompt ──┤
  overlapped   ├─ layer 0 ─┤├─ layer 1 ─┤ …
                            ├─ layer 0 ─┤├─ layer 1 ─┤ …
Pure functions of estimates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NEGLIGIBLE_LOAD_S = 0.01
"""A load that is expected to take no longer is taken: estimates are not better than that, and it
leaves the processor to others."""
PATIENCE_S = 0.1
PATIENCE_SHARE = 0.05
"""A load is given that long to show what it is worth, or this share of what computing takes."""


@dataclass(frozen=True, slots=True)
class Option:
    """To load the leading blocks, and compute what follows."""

    load_s: float
    compute_s: float
    overlaps: bool  # layer by layer; else one after the other

    def seconds(self, num_layers: int) -> float:
        """Until the first token."""
        if not self.overlaps:
            return self.load_s + self.compute_s
        longer, shorter = max(self.load_s, self.compute_s), min(self.load_s, self.compute_s)
        return longer + shorter / num_layers


def best(options: Sequence[Option], num_layers: int) -> int:
    """How many blocks to load, given what comes of 0, 1, 2 … of them. Of equals the most."""
    most = len(options) - 1
    if options[most].load_s <= NEGLIGIBLE_LOAD_S:
        return most
    return min(range(most, -1, -1), key=lambda count: options[count].seconds(num_layers))


def longest_wait_s(
    *, done_bytes: int, next_bytes: int, total_bytes: int, recompute_s: float
) -> float:
    """Seconds from its start after which a load is given up, if `next_bytes` have not come by then:
    at the pace that they would have shown, the rest takes longer than computing it all."""
    by_then = done_bytes + next_bytes
    rest = total_bytes - by_then
    limit = recompute_s * by_then / rest if rest > 0 else float("inf")
    return max(PATIENCE_S, PATIENCE_SHARE * recompute_s, limit)

"""Puts into a pool that is full."""

from __future__ import annotations

from collections.abc import Mapping

from ..report import Row, Spread
from ..rounds import LIMIT, OURS, Contestants
from .cases import Budget, MiB

LARGEST_PUTS = 8
FULL_POOLS = 3


def full_pool_rows(contestants: Contestants, budget: Budget, largest: int) -> list[Row]:
    """Mixed sizes into a pool that is full: who refuses, and how much one large put evicts."""
    asked = {
        "do": "mixed",
        "seed": 1,
        "largest": largest,
        "total_bytes": FULL_POOLS * budget.pool_bytes,
    }
    answers = contestants.rounds(1, lambda name, _: None if name == LIMIT else asked)
    told = {name: _refusals(given[0]) for name, given in answers.items()}
    rows = [
        Row(
            case=f"puts of 4 KiB–{largest // MiB} MiB, {FULL_POOLS}× the pool",
            size_bytes=largest,
            ours=told.pop(OURS),
            peers=told,
        )
    ]
    evicted = contestants.ask(OURS, {"do": "largest", "size_bytes": largest, "calls": LARGEST_PUTS})
    rows.append(
        Row(
            case=f"put of {largest // MiB} MiB into the full pool",
            size_bytes=largest,
            ours={"evicted_per_put": Spread.of(evicted or [])},
            note=f"largest {max(evicted or []):.3g}",
        )
    )
    contestants.rounds(1, lambda _name, _round: {"do": "clear"})
    return rows


def _refusals(counts: Mapping[str, int]) -> dict[str, Spread]:
    return {name: Spread.of([counts[name]]) for name in ("puts", "refused")}

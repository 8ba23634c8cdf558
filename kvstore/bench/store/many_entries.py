"""Very many small entries: how fast they come, and what each costs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..report import Row, Spread, ratio_interval
from ..rounds import LIMIT, OURS, Answers, Contestants
from .cases import Budget, exists_case
from .peers import PEERS
from .rows import call_row

SMALL_BYTES = 1 << 10
FILL_BATCH = 1000
FILL_ROUNDS = 10
FEW_KEYS = 10_000
WITH_SERVER = (OURS, "mooncake", "redis")
"""Contestants whose catalogue is in a process of its own, so that its memory can be told."""


def whole_keys(count: int) -> int:
    """So many of `count` as whole batches and rounds can put."""
    step = FILL_ROUNDS * (FILL_BATCH if count >= FILL_ROUNDS * FILL_BATCH else 1)
    return count - count % step


@dataclass(frozen=True, slots=True)
class ManyEntries:
    """Entries of 1 KiB: how fast they come, what a key costs, how fast existence is told."""

    contestants: Contestants
    budget: Budget
    num_keys: int

    def rows(self) -> list[Row]:
        rows = []
        if self.num_keys > FEW_KEYS:
            self._fill(1, FEW_KEYS)
            rows.append(self._exists(FEW_KEYS))
            self._clear()
        before = self._memory()
        rows.append(self._puts_row(self._fill(FILL_ROUNDS, self.num_keys)))
        full = self._memory()
        rows.append(self._exists(self.num_keys))
        self._clear()
        rows.append(self._memory_row(before, full, self._memory()))
        return rows

    def _fill(self, rounds: int, num_keys: int) -> Answers:
        count = num_keys // rounds

        def request(name: str, number: int) -> Mapping[str, Any] | None:
            if name not in WITH_SERVER:
                return None
            return {
                "do": "fill",
                "first": number * count,
                "count": count,
                "size_bytes": SMALL_BYTES,
                "batch": min(FILL_BATCH, count),
                "calls": count,
                "budget_seconds": 0,
                "keep_bytes": self.budget.keep_bytes,
            }

        return self.contestants.rounds(rounds, request)

    def _exists(self, among: int) -> Row:
        case = exists_case(among)
        requests = case.requests(self.budget)
        asked = {"ours": requests["ours"], LIMIT: requests["limit"]}

        def request(name: str, _: int) -> Mapping[str, Any] | None:
            return asked.get(name, requests["peers"] if name in WITH_SERVER else None)

        return call_row(case, self.contestants.rounds(self.budget.rounds, request))

    def _clear(self) -> None:
        self.contestants.rounds(1, lambda name, _: {"do": "clear"} if name in WITH_SERVER else None)

    def _memory(self) -> dict[str, int]:
        answers = self.contestants.rounds(
            1, lambda name, _: {"do": "memory"} if name in WITH_SERVER else None
        )
        return {name: given[0] for name, given in answers.items()}

    def _puts_row(self, answers: Answers) -> Row:
        batch = min(FILL_BATCH, self.num_keys // FILL_ROUNDS)
        rates = {
            name: [batch / statistics.fmean(calls) for calls in rounds]
            for name, rounds in answers.items()
        }
        return _rates_row(
            f"puts of 1 KiB until {self.num_keys} are there", "puts_per_s", rates, batch
        )

    def _memory_row(
        self, before: Mapping[str, int], full: Mapping[str, int], cleared: Mapping[str, int]
    ) -> Row:
        def figures(name: str) -> dict[str, Spread]:
            grown, left = full[name] - before[name], cleared[name] - before[name]
            if name in PEERS and PEERS[name].keeps_values:
                grown -= self.num_keys * SMALL_BYTES
            return {
                "bytes_per_key": Spread.of([grown / self.num_keys]),
                "after_clear": Spread.of([left / self.num_keys]),
            }

        told = {name: figures(name) for name in cleared if name in full and name in before}
        ours = told.pop(OURS)
        cost = ours["bytes_per_key"].median
        ratios = {
            name: peer["bytes_per_key"].median / cost for name, peer in told.items() if cost > 0
        }
        return Row(
            case=f"memory a key, {self.num_keys} of 1 KiB",
            size_bytes=SMALL_BYTES,
            ours=ours,
            peers=told,
            ratio=ratios,
            note="growth of the catalogue's process, header slots included; values are not",
        )


def _rates_row(case: str, unit: str, rates: Mapping[str, Sequence[float]], batch: int) -> Row:
    """Higher is better."""
    told = {name: {unit: Spread.of(values)} for name, values in rates.items()}
    others = {name: values for name, values in rates.items() if name != OURS}
    return Row(
        case=case,
        size_bytes=SMALL_BYTES,
        batch=batch,
        ours=told.pop(OURS),
        peers=told,
        ratio={
            name: ratio_interval(list(zip(rates[OURS], values, strict=True))).median
            for name, values in others.items()
        },
    )

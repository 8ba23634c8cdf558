"""Cases with a course of their own: very many entries, a full pool, a burst larger than DRAM."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..report import Row, Spread, ratio_interval
from .cases import Budget, MiB, exists_case
from .contestants import Contestant, driver_command
from .daemon import running_daemon
from .drivers.nvme import READ_BATCH
from .peers import PEERS
from .rounds import LIMIT, OURS, Answers, Field, Say
from .rows import GIGABYTE, call_row

SMALL_BYTES = 1 << 10
FILL_BATCH = 1000
FILL_ROUNDS = 10
FEW_KEYS = 10_000
WITH_SERVER = (OURS, "mooncake", "redis")
"""Contestants whose catalogue is in a process of its own, so that its memory can be told."""
BLOCK_BYTES = MiB
BURST_OF_DRAM = 3
LARGEST_PUTS = 8
FULL_POOLS = 3


@dataclass(frozen=True, slots=True)
class ManyEntries:
    """Entries of 1 KiB: how fast they come, what a key costs, how fast existence is told."""

    field: Field
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

        return self.field.rounds(rounds, request)

    def _exists(self, among: int) -> Row:
        case = exists_case(among)
        requests = case.requests(self.budget)
        asked = {"ours": requests["ours"], LIMIT: requests["limit"]}

        def request(name: str, _: int) -> Mapping[str, Any] | None:
            return asked.get(name, requests["peers"] if name in WITH_SERVER else None)

        return call_row(case, self.field.rounds(self.budget.rounds, request))

    def _clear(self) -> None:
        self.field.rounds(1, lambda name, _: {"do": "clear"} if name in WITH_SERVER else None)

    def _memory(self) -> dict[str, int]:
        answers = self.field.rounds(
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


def full_pool_rows(field: Field, budget: Budget, largest: int) -> list[Row]:
    """Mixed sizes into a pool that is full: who refuses, and how much one large put evicts."""
    asked = {
        "do": "mixed",
        "seed": 1,
        "largest": largest,
        "total_bytes": FULL_POOLS * budget.pool_bytes,
    }
    answers = field.rounds(1, lambda name, _: None if name == LIMIT else asked)
    told = {name: _refusals(given[0]) for name, given in answers.items()}
    rows = [
        Row(
            case=f"puts of 4 KiB–{largest // MiB} MiB, {FULL_POOLS}× the pool",
            size_bytes=largest,
            ours=told.pop(OURS),
            peers=told,
        )
    ]
    evicted = field.ask(OURS, {"do": "largest", "size_bytes": largest, "calls": LARGEST_PUTS})
    rows.append(
        Row(
            case=f"put of {largest // MiB} MiB into the full pool",
            size_bytes=largest,
            ours={"evicted_per_put": Spread.of(evicted or [])},
            note=f"largest {max(evicted or []):.3g}",
        )
    )
    field.rounds(1, lambda _name, _round: {"do": "clear"})
    return rows


def _refusals(counts: Mapping[str, int]) -> dict[str, Spread]:
    return {name: Spread.of([counts[name]]) for name in ("puts", "refused")}


@dataclass(frozen=True, slots=True)
class Burst:
    """Blocks three times as many as DRAM holds, into a store with an NVMe tier of its own."""

    directory: Path
    dram_bytes: int
    rounds: int
    say: Say

    def rows(self) -> list[Row]:
        count = BURST_OF_DRAM * self.dram_bytes // BLOCK_BYTES
        with self._field() as field:
            written, read = [], []
            for number in range(self.rounds + 1):
                blocks = {"block_bytes": BLOCK_BYTES, "count": count, "first": number * count}
                written.append(self._round(field, "direct_write", "burst", blocks))
                read.append(self._round(field, "direct_read", "read_back", blocks))
                field.ask(OURS, {"do": "clear"})
        return [
            self._write_row(count, written[1:]),
            self._read_row(count, read[1:]),
        ]

    @contextlib.contextmanager
    def _field(self) -> Iterator[Field]:
        flags = ["--dram", str(self.dram_bytes), "--nvme-backlog", "refuse"]
        flags += ["--nvme", str(2 * BURST_OF_DRAM * self.dram_bytes)]
        settings = {"pool_bytes": BLOCK_BYTES, "area_bytes": BLOCK_BYTES, "touch": False}
        with (
            running_daemon(self.directory, *flags) as daemon,
            Field(self.say) as field,
        ):
            own = {**settings, **daemon.settings(), "checksums": "on"}
            for name, module, given in ((OURS, "ours", own), (LIMIT, "limits", settings)):
                log = self.directory / f"nvme-{name}.log"
                field.enter(Contestant(name, driver_command(module), log), given)
            yield field

    def _round(
        self, field: Field, limit: str, ours: str, blocks: Mapping[str, int]
    ) -> tuple[float, dict[str, float]]:
        raw = {"do": limit, "path": str(self.directory / "raw"), **blocks}
        seconds: float = field.ask(LIMIT, raw)
        answer: dict[str, float] = field.ask(OURS, {"do": ours, **blocks})
        return seconds, answer

    def _write_row(self, count: int, rounds: Sequence[tuple[float, dict[str, float]]]) -> Row:
        seconds = [(raw, ours["flushed_seconds"]) for raw, ours in rounds]
        more = {
            "put_gb_per_s": [_gb(count, ours["taken_seconds"]) for _, ours in rounds],
            "retries": [ours["retries"] for _, ours in rounds],
        }
        return self._row("NVMe write, burst of 3× DRAM", count, seconds, more)

    def _read_row(self, count: int, rounds: Sequence[tuple[float, dict[str, float]]]) -> Row:
        seconds = [(raw, ours["seconds"]) for raw, ours in rounds]
        more = {"lost": [ours["lost"] for _, ours in rounds]}
        return self._row(f"NVMe read back in order, {READ_BATCH} a call", count, seconds, more)

    def _row(
        self,
        case: str,
        count: int,
        seconds: Sequence[tuple[float, float]],
        more: Mapping[str, Sequence[float]],
    ) -> Row:
        ours = {"gb_per_s": Spread.of([_gb(count, ours) for _, ours in seconds])}
        return Row(
            case=case,
            size_bytes=BLOCK_BYTES,
            ours={**ours, **{name: Spread.of(values) for name, values in more.items()}},
            limit={"gb_per_s": Spread.of([_gb(count, raw) for raw, _ in seconds])},
            ratio={LIMIT: ratio_interval(seconds).median},
            note=f"limit: sequential O_DIRECT; {count} blocks",
        )


def _gb(count: int, seconds: float) -> float:
    return count * BLOCK_BYTES / seconds / GIGABYTE


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

"""Rows of a benchmark, with machine, commit, medians and spread."""

from __future__ import annotations

import math
import os
import platform
import random
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from ..doctor.proc import chosen

MICROSECONDS = 1e6
GIGABYTE = 1e9
_RESAMPLES = 2000
_SHARED_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")


class Spread(msgspec.Struct, frozen=True):
    """Median and quartiles of repeated measurements."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Raises StatisticsError on no values."""
        if len(values) < 2:
            return cls(statistics.median(values), min(values), max(values), len(values))
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(statistics.median(values), low, high, len(values))

    def __str__(self) -> str:
        return f"{self.median:.4g} [{self.low:.4g}, {self.high:.4g}]"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One case: ours beside a limit (and peers). A ratio above 1 means that we are better, also
    where lower is better."""

    case: str
    size_bytes: int = 0
    batch: int = 1
    ours: dict[str, Spread]
    peers: dict[str, dict[str, Spread]] = {}
    limit: dict[str, Spread] = {}
    ratio: dict[str, float] = {}
    note: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` writes."""

    machine: str
    commit: str
    settings: dict[str, str]
    rows: tuple[Row, ...]

    @classmethod
    def of(cls, rows: Sequence[Row], settings: dict[str, str]) -> Report:
        return cls(machine=_machine(), commit=_commit(), settings=settings, rows=tuple(rows))

    def write(self, path: Path) -> None:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self)))

    def show(self) -> None:
        """Prints the table."""
        table = Table(title=f"{self.machine}, commit {self.commit[:12] or 'unknown'}")
        for title in ("case", "ours", "limit", "ratio", "note"):
            table.add_column(title, overflow="fold")
        for row in self.rows:
            table.add_row(
                row.case,
                *("\n".join(f"{k} {v}" for k, v in side.items()) for side in (row.ours, row.limit)),
                "\n".join(f"{name} {value:.3g}" for name, value in row.ratio.items()),
                row.note,
            )
        Console().print(table)


def percentile(values: Sequence[float], ratio: float) -> float:
    """The smallest value that at least `ratio` of all do not exceed."""
    return sorted(values)[max(0, math.ceil(ratio * len(values)) - 1)]


def ratio_interval(pairs: Sequence[tuple[float, float]]) -> Spread:
    """Median of the ratios within interleaved pairs, with a 95 % bootstrap interval (fixed
    seed)."""
    ratios = [ours / other for ours, other in pairs]
    rng = random.Random(0)
    medians = sorted(
        statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(_RESAMPLES)
    )
    low, high = medians[int(0.025 * _RESAMPLES)], medians[int(0.975 * _RESAMPLES) - 1]
    return Spread(statistics.median(ratios), low, high, len(ratios))


def load_average() -> str:
    """Of the last 1, 5 and 15 minutes."""
    return " ".join(f"{value:.2f}" for value in os.getloadavg())


def shared_huge_pages() -> str:
    """What the kernel says of huge pages in shared memory: `never`, `advise`, ..."""
    try:
        text = _SHARED_HUGE_PAGES.read_text()
    except OSError:
        return "not there"
    return chosen(text)


def _machine() -> str:
    names = {
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    }
    cpu = ", ".join(sorted(names)) or platform.machine()
    return f"{cpu}, {len(os.sched_getaffinity(0))} cores, Linux {platform.release()}"


def _commit() -> str:
    """Of the checkout this runs from; empty for an installed package."""
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=Path(__file__).resolve().parent,
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip()

"""What the demo tells: rows as a table, and as JSON."""

from __future__ import annotations

import os
import platform
import statistics
from pathlib import Path
from typing import Literal, get_args

import msgspec
from rich.console import Console
from rich.table import Table

Case = Literal["cold", "dram", "colocated", "second_turn", "nvme", "remote", "split"]
CASES: tuple[Case, ...] = get_args(Case)
_WIDTH = 100  # also where the output is no terminal


class StoreTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """What one store counted while a request ran, and what it held before."""

    dram_entries_before: int = 0
    nvme_entries_before: int = 0
    dram_bytes_in: int = 0
    dram_bytes_out: int = 0
    nvme_bytes_out: int = 0
    tcp_bytes_in: int = 0
    tcp_bytes_out: int = 0
    file_bytes_in: int = 0


class RowEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What the workers and the stores counted while the row ran."""

    bytes_by_tier: dict[str, int]
    bytes_by_transport: dict[str, int]
    first_layer_at: float | None  # unix seconds
    last_layer_at: float | None
    prefill_end_at: float | None
    worker: str
    stores: dict[str, StoreTraffic]  # by node


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `speedup` is the TTFT of the same prompt computed cold, over this one's."""

    case: Case
    question: str
    prompt_tokens: int
    cached_tokens: int
    tier: str
    ttft_seconds: float
    speedup: float
    tokens_per_second: float
    text_equal: bool
    evidence: RowEvidence
    wrong: tuple[str, ...]  # empty: the row is right


class Machine(msgspec.Struct, frozen=True):
    cpus: int
    processor: str
    memory_bytes: int
    system: str
    python: str


class Report(msgspec.Struct, frozen=True):
    ok: bool
    machine: Machine
    model: str
    rows: tuple[Row, ...]


def this_machine() -> Machine:
    return Machine(
        len(os.sched_getaffinity(0)),
        _processor(),
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        platform.platform(),
        platform.python_version(),
    )


def write_json(path: Path, report: Report) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")


def print_table(report: Report) -> None:
    """One line a case: medians over its rows."""
    table = Table(title=f"{report.model} on {report.machine.cpus} CPUs, medians")
    for heading in ("case", "prompt", "cached", "tier", "TTFT", "speedup", "tokens/s", "text", ""):
        side: Literal["left", "right"] = "left" if heading in ("case", "tier") else "right"
        table.add_column(heading, justify=side, no_wrap=True)
    for case in CASES:
        rows = [row for row in report.rows if row.case == case]
        if rows:
            table.add_row(*_cells(case, rows))
    console = Console(width=_WIDTH)
    console.print(table)
    if costs := [1 / row.speedup - 1 for row in report.rows if row.case == "split"]:
        console.print(
            f"hand-off: TTFT {statistics.median(costs):+.1%} against one worker alone, both cold"
        )
    for row in report.rows:
        for fault in row.wrong:
            console.print(
                f"WRONG {row.case} ({row.question}): {fault}", markup=False, soft_wrap=True
            )


def _cells(case: Case, rows: list[Row]) -> list[str]:
    def median(values: list[float]) -> float:
        return statistics.median(values)

    return [
        case,
        f"{median([row.prompt_tokens for row in rows]):.0f}",
        f"{median([row.cached_tokens for row in rows]):.0f}",
        "/".join(sorted({row.tier for row in rows})),
        f"{median([row.ttft_seconds for row in rows]) * 1000:.0f} ms",
        f"{median([row.speedup for row in rows]):.1f}×",
        f"{median([row.tokens_per_second for row in rows]):.1f}",
        "equal" if all(row.text_equal for row in rows) else "DIFFERS",
        "ok" if not any(row.wrong for row in rows) else "WRONG",
    ]


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()

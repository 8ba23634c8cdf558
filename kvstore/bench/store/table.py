"""The report for people: one line a row, a column a contestant."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from ...service import Size
from ..report import Report, Row, Spread
from .rounds import LIMIT

HEADLINES = ("p50_us", "puts_per_s", "bytes_per_key", "refused", "hit_ratio", "gb_per_s")
"""Of the figures a side has, the one its column shows."""


def show(report: Report) -> None:
    peers = sorted({name for row in report.rows for name in row.peers})
    table = Table(title=f"{report.machine}, commit {report.commit[:12] or 'unknown'}")
    for title in ("case", "size", "×", "unit", "ours [quartiles]", "GB/s", *peers, LIMIT):
        table.add_column(title, overflow="fold", justify="right" if title != "case" else "left")
    for row in report.rows:
        table.add_row(*_cells(row, peers))
    console = Console()
    console.print(table)
    console.print(
        "In brackets behind others' figures: how many times better ours is, the median of the "
        "ratios within rounds."
    )
    for name, value in report.settings.items():
        console.print(f"{name}: {value}", highlight=False)


def _cells(row: Row, peers: Sequence[str]) -> list[str]:
    unit = next((name for name in HEADLINES if name in row.ours), next(iter(row.ours)))
    rate = row.ours.get("gb_per_s")
    sides = {**{name: row.peers.get(name, {}) for name in peers}, LIMIT: row.limit}
    return [
        row.case,
        str(Size(row.size_bytes)) if row.size_bytes else "",
        str(row.batch) if row.batch > 1 else "",
        unit,
        str(row.ours[unit]),
        f"{rate.median:.3g}" if rate and unit != "gb_per_s" else "",
        *(_beside(told.get(unit), row.ratio.get(name)) for name, told in sides.items()),
    ]


def _beside(figure: Spread | None, ratio: float | None) -> str:
    if figure is None:
        return ""
    return f"{figure.median:.4g}" + (f" ({ratio:.2f}×)" if ratio is not None else "")

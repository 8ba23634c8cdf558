"""The report for people: one line a row, a column a contestant."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from ..service import Size
from .report import Report, Row, Spread
from .rounds import LIMIT

HEADLINES = {
    "p50_us": "µs",
    "puts_per_s": "puts/s",
    "bytes_per_key": "B",
    "refused": "refused",
    "hit_ratio": "of blocks hit",
    "evicted_per_put": "× evicted",
    "gb_per_s": "GB/s",
    "gap_seconds": "s",
    "failed_ratio": "of calls",
    "longest_call_seconds": "s",
}
"""The figure that a row's line shows is the first of these it has, if no other was asked for."""
BESIDE = {
    "lost": "lost",
    "retries": "retries",
    "after_clear": "B after clear",
    "cpu_s_per_gb": "CPU s/GB",
}
"""Figures that stand beside the headline."""
PIPED_COLUMNS = 150


def show(report: Report, headline: str = "p50_us") -> None:
    """A row without that figure shows another of HEADLINES."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPED_COLUMNS)
    peers = sorted({name for row in report.rows for name in row.peers})
    table = Table(title=f"{report.machine}, commit {report.commit[:12] or 'unknown'}")
    table.add_column("case", min_width=16)
    rates = () if headline == "gb_per_s" else ("GB/s",)
    for title in ("size", "ours [quartiles]", *rates, *peers, LIMIT):
        table.add_column(title, justify="right")
    for row in report.rows:
        shown = headline if headline in row.ours else _first_of(row)
        rate = row.ours.get("gb_per_s") if shown != "gb_per_s" else None
        beside = [_rounded(rate.median) if rate else ""] if rates else []
        first, *others = _cells(row, peers, shown)
        table.add_row(row.case, _size(row), first, *beside, *others)
    console.print(table)
    console.print("(2×): ours is twice as good, the median of the ratios within rounds")
    for name, value in report.settings.items():
        console.print(f"{name}: {value}", highlight=False)


def _first_of(row: Row) -> str:
    return next(name for name in HEADLINES if name in row.ours)


def _cells(row: Row, peers: Sequence[str], headline: str) -> list[str]:
    """Ours, the peers', the limit."""
    sides = {**{name: row.peers.get(name, {}) for name in peers}, LIMIT: row.limit}
    return [
        ", ".join(
            [_spread(row.ours[headline], HEADLINES[headline])]
            + [
                f"{_rounded(row.ours[name].median)} {unit}"
                for name, unit in BESIDE.items()
                if name in row.ours
            ]
        ),
        *(_beside(told.get(headline), row.ratio.get(name)) for name, told in sides.items()),
    ]


def _size(row: Row) -> str:
    size = str(Size(row.size_bytes)) if row.size_bytes else ""
    return " × ".join(text for text in (str(row.batch) if row.batch > 1 else "", size) if text)


def _spread(figure: Spread, unit: str) -> str:
    middle = f"{_rounded(figure.median)} {unit}"
    low, high = _rounded(figure.low), _rounded(figure.high)
    return middle if figure.count == 1 else f"{middle} [{low}, {high}]"


def _beside(figure: Spread | None, ratio: float | None) -> str:
    if figure is None:
        return ""
    return _rounded(figure.median) + (f" ({_rounded(ratio)}×)" if ratio is not None else "")


def _rounded(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"

"""From answers of contestants to rows of the report."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ..report import GIGABYTE, MICROSECONDS, Row, Spread, percentile, ratio_interval
from ..rounds import LIMIT, OURS, Answers
from .cases import Case

RAW = "raw "
"""What names of the raw sockets' copy variants begin with."""


def transfer_row(case: Case, answers: Answers) -> Row:
    """Rates of all threads together; ratios of rates within rounds. The limit is the best of the
    raw sockets' variants."""
    rates = {name: [_rate(answer) for answer in rounds] for name, rounds in answers.items()}
    raw = {name: statistics.median(told) for name, told in rates.items() if name.startswith(RAW)}
    best = max(raw, key=raw.__getitem__, default=None)
    beside = {name: name for name in rates if name != OURS and name not in raw}
    if best is not None:
        beside[LIMIT] = best
    ratios = {
        name: ratio_interval(list(zip(rates[OURS], rates[contestant], strict=True)))
        for name, contestant in beside.items()
    }
    figures = {name: _figures(answers[contestant]) for name, contestant in beside.items()}
    return Row(
        case=case.name,
        size_bytes=case.size_bytes,
        batch=case.batch,
        ours=_figures(answers[OURS]),
        limit=figures.pop(LIMIT, {}),
        peers=figures,
        ratio={name: ratio.median for name, ratio in ratios.items()},
        note=_note(best, ratios),
    )


def _figures(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Spread]:
    return {
        "p50_us": Spread.of([_percentile_us(answer, 0.5) for answer in rounds]),
        "p99_us": Spread.of([_percentile_us(answer, 0.99) for answer in rounds]),
        "gb_per_s": Spread.of([_rate(answer) for answer in rounds]),
        "cpu_s_per_gb": Spread.of(
            [answer["cpu_seconds"] / answer["bytes"] * GIGABYTE for answer in rounds]
        ),
    }


def _rate(answer: Mapping[str, Any]) -> float:
    return float(answer["bytes"] / answer["elapsed_seconds"] / GIGABYTE)


def _percentile_us(answer: Mapping[str, Any], ratio: float) -> float:
    return percentile(answer["seconds"], ratio) * MICROSECONDS


def _note(best: str | None, ratios: Mapping[str, Spread]) -> str:
    """Which variant is the limit, and 95 % intervals of the ratios."""
    told = [f"{name} {ratio.low:.3g}–{ratio.high:.3g}" for name, ratio in ratios.items()]
    return "; ".join([*([f"limit: {best}"] if best else []), *told])

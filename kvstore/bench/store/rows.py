"""From seconds of calls to rows of the report."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from ..report import GIGABYTE, MICROSECONDS, Row, Spread, percentile, ratio_interval
from ..rounds import LIMIT, OURS, Answers
from .cases import Case


def call_row(case: Case, answers: Answers) -> Row:
    """p50 and p99 of the calls of each round, as spreads over rounds; ratios are of the p50s within
    rounds."""
    medians = {
        name: [statistics.median(calls) for calls in rounds] for name, rounds in answers.items()
    }
    figures = {name: _figures(case, rounds) for name, rounds in answers.items()}
    ratios = {
        name: ratio_interval(list(zip(others, medians[OURS], strict=True)))
        for name, others in medians.items()
        if name != OURS
    }
    return Row(
        case=case.name,
        size_bytes=case.size_bytes,
        batch=case.batch,
        ours=figures[OURS],
        peers={name: told for name, told in figures.items() if name not in (OURS, LIMIT)},
        limit=figures.get(LIMIT, {}),
        ratio={name: ratio.median for name, ratio in ratios.items()},
        note=_note(case, ratios),
    )


def _figures(case: Case, rounds: Sequence[Sequence[float]]) -> dict[str, Spread]:
    told = {
        "p50_us": Spread.of([statistics.median(calls) * MICROSECONDS for calls in rounds]),
        "p99_us": Spread.of([percentile(calls, 0.99) * MICROSECONDS for calls in rounds]),
    }
    if case.has_rate:
        rates = [case.call_bytes / statistics.median(calls) / GIGABYTE for calls in rounds]
        told["gb_per_s"] = Spread.of(rates)
    return told


def _note(case: Case, ratios: Mapping[str, Spread]) -> str:
    """The limit's name, and 95 % intervals of the ratios."""
    told = [f"{name} {ratio.low:.3g}–{ratio.high:.3g}" for name, ratio in ratios.items()]
    limit = [f"limit: {case.limit_name}"] if LIMIT in ratios else []
    return "; ".join([*limit, *([case.note] if case.note else []), *told])

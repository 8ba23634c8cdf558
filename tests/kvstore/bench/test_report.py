from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from moontide.kvstore.bench import Report, Row, Spread, ratio_interval


def test_a_spread_is_median_and_quartiles() -> None:
    assert Spread.of([5, 1, 3, 2, 4]) == Spread(3, 2, 4, 5)
    assert Spread.of([7.0]) == Spread(7, 7, 7, 1)


def test_the_interval_of_equal_ratios_is_that_ratio_whatever_the_level() -> None:
    interval = ratio_interval([(2 * n, n) for n in (1.0, 5.0, 9.0)])
    assert interval == Spread(2, 2, 2, 3)


def test_the_interval_is_reproducible_and_holds_the_median() -> None:
    pairs = [(1.0 + n / 10, 1.0) for n in range(15)]
    interval = ratio_interval(pairs)
    assert interval == ratio_interval(pairs)
    assert interval.low < interval.median < interval.high
    assert interval.median == pytest.approx(1.7)


def test_a_report_is_shown_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = Row(case="gets", ours={"seconds": Spread.of([1.0])}, ratio={"limit": 0.5}, note="why")
    report = Report.of([row], {"pairs": "1"})
    report.write(tmp_path / "report.json")
    assert msgspec.json.decode((tmp_path / "report.json").read_bytes(), type=Report) == report
    report.show()
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("gets", "0.5", "why"))

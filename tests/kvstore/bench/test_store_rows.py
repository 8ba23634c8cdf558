"""From measured seconds to rows and to the table."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from moontide.kvstore.bench import Report, Row, Spread
from moontide.kvstore.bench.report import percentile
from moontide.kvstore.bench.store.cases import SIZES, Budget, area_bytes, call_cases
from moontide.kvstore.bench.store.rows import call_row
from moontide.kvstore.bench.table import show

CASE = next(case for case in call_cases([1 << 20]) if case.name == "put")


def test_a_percentile_is_the_smallest_value_that_enough_do_not_exceed() -> None:
    values = [float(value) for value in range(1, 101)]
    assert percentile(values, 0.99) == 99
    assert percentile(values, 1.0) == 100
    assert percentile([5.0], 0.99) == 5


def test_a_row_has_medians_over_rounds_and_ratios_within_rounds() -> None:
    row = call_row(
        CASE,
        {
            "ours": [[1e-3, 1e-3, 9e-3], [2e-3], [4e-3]],
            "mooncake": [[2e-3], [4e-3], [8e-3]],
            "limit": [[0.5e-3], [1e-3], [2e-3]],
        },
    )
    assert (row.case, row.size_bytes, row.batch) == ("put", 1 << 20, 1)
    assert row.ours["p50_us"].median == pytest.approx(2000)
    assert row.ours["p99_us"].high == pytest.approx(6500)  # of 9, 2 and 4 ms
    assert row.ours["gb_per_s"].median == pytest.approx((1 << 20) / 2e-3 / 1e9)
    assert row.peers["mooncake"]["p50_us"] == Spread.of([2000.0, 4000.0, 8000.0])
    assert row.ratio == pytest.approx({"mooncake": 2.0, "limit": 0.5})
    assert "memcpy" in row.note


def test_a_row_without_peers_and_limit_is_ours_alone() -> None:
    row = call_row(CASE, {"ours": [[1e-3]]})
    assert (row.peers, row.limit, row.ratio) == ({}, {}, {})


def test_every_case_fits_the_pool_and_its_areas() -> None:
    cases = list(call_cases(SIZES))
    budget = Budget()
    assert len({(case.name, case.size_bytes, case.batch) for case in cases}) == len(cases)
    assert area_bytes(cases) * 2 <= budget.pool_bytes
    for case in cases:
        requests = [asked for asked in case.requests(budget).values() if asked]
        assert all(asked["keep_bytes"] <= budget.pool_bytes for asked in requests)
        assert len({asked["calls"] for asked in requests}) == 1


def test_the_report_has_the_promised_shape(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = call_row(CASE, {"ours": [[1e-3]], "mooncake": [[2e-3]], "limit": [[1e-3]]})
    memory = Row(case="memory a key", ours={"bytes_per_key": Spread.of([196.0])})
    report = Report.of([row, memory], {"rounds": "1"})
    report.write(tmp_path / "report.json")
    written = msgspec.json.decode((tmp_path / "report.json").read_bytes())
    assert {"machine", "commit", "settings", "rows"} <= written.keys()
    assert written["rows"][0].keys() >= {
        *("case", "size_bytes", "batch", "ours", "peers", "limit", "ratio")
    }
    assert written["rows"][0]["ours"].keys() == {"p50_us", "p99_us", "gb_per_s"}
    show(report)
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("mooncake", "(2×)", "196 B"))

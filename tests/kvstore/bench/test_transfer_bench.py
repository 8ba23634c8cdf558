"""`moontide bench transfer` with tiny sizes: the real processes, every contestant that needs no
package of a peer's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from moontide.kvstore.bench.transfer.cases import AREA_BYTES, Case, Grid, KiB, MiB
from moontide.kvstore.bench.transfer.command import transfer
from moontide.kvstore.bench.transfer.rows import transfer_row

ROUNDS = 2


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    directory = tmp_path_factory.mktemp("bench")
    (directory / "peers").write_text("")  # a file: no environment can be made there
    flags = [
        "--case",
        "slices",
        "--sizes",
        "4KiB,1MiB",
        "--batches",
        "1,3",
        "--streams",
        "2",
        "--threads",
        "1,2",
    ]
    flags += ["--rounds", str(ROUNDS), "--round-seconds", "0", "--against", "mooncake"]
    places = ["--peer-dir", str(directory / "peers"), "--json", str(directory / "report.json")]
    result = CliRunner().invoke(transfer, [*flags, *places])
    assert result.exit_code == 0, result.output
    assert "installs mooncake-transfer-engine" in result.output
    assert "mooncake is left out" in result.output
    report = json.loads((directory / "report.json").read_text())
    assert {"version ours", "version raw MSG_WAITALL"} <= report["settings"].keys()
    found: list[dict[str, Any]] = report["rows"]
    return found


def test_every_combination_has_a_row_beside_its_limit(rows: list[dict[str, Any]]) -> None:
    """Whoever moves other bytes than asked ends the run or is left out: none did."""
    assert len(rows) == 2 * 2 * 2 * 2
    assert len({(row["case"], row["size_bytes"], row["batch"]) for row in rows}) == len(rows)
    for row in rows:
        assert row["ratio"].keys() == {"limit", "memcpy"}
        assert "limit: raw " in row["note"]
        for side in (row["ours"], row["limit"], row["peers"]["memcpy"]):
            assert side.keys() == {"p50_us", "p99_us", "gb_per_s", "cpu_s_per_gb"}
            assert side["gb_per_s"]["count"] == ROUNDS
            assert side["gb_per_s"]["median"] > 0
            assert side["cpu_s_per_gb"]["median"] > 0


def test_the_limit_is_the_variant_with_the_best_rate_and_ratios_are_within_rounds() -> None:
    case = Case("read", MiB, 1, 2, 1)

    def rounds(*elapsed: float) -> list[dict[str, Any]]:
        return [
            {"seconds": [s], "bytes": MiB, "elapsed_seconds": s, "cpu_seconds": s} for s in elapsed
        ]

    row = transfer_row(
        case,
        {
            "ours": rounds(2e-3, 4e-3),
            "raw recv_into": rounds(4e-3, 4e-3),
            "raw MSG_WAITALL": rounds(1e-3, 2e-3),
            "nixl": rounds(4e-3, 8e-3),
        },
    )
    assert row.case == "read, 2 streams, 1 thread"
    assert row.ratio == pytest.approx({"limit": 0.5, "nixl": 2.0})
    assert row.note.startswith("limit: raw MSG_WAITALL")
    assert row.limit["p50_us"].median == pytest.approx(1500)
    assert row.peers.keys() == {"nixl"}


def test_a_grid_leaves_out_what_does_not_fit_the_areas() -> None:
    cases = list(Grid().cases())
    assert len(set(cases)) == len(cases)
    assert max(case.bytes_in_flight for case in cases) == AREA_BYTES
    assert Case("read", 4 * KiB, 32, 1, 8) in cases
    assert Case("read", 64 * MiB, 32, 1, 8) not in cases


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--against", "gloo"], "--against names 'gloo'; known are nixl, mooncake"),
        (["--streams", "9"], "--streams '9': give numbers from 1 to 8"),
        (["--threads", "0"], "--threads '0': give numbers from 1 to 8"),
        (["--batches", "x"], "--batches 'x': give numbers from 1 to 128"),
        (["--batches", "9" * 5000], "give numbers from 1 to 128"),
        (["--batches", ","], "--batches '': give numbers from 1 to 128"),
        (["--sizes", "4 cows"], "--sizes: '4 cows'"),
        (["--sizes", "0"], "--sizes 0: give sizes from 1 to 128MiB"),
        (["--sizes", "4KiB,129MiB"], "--sizes 129MiB: give sizes from 1 to 128MiB"),
        (
            ["--sizes", "64MiB", "--batches", "128"],
            "is 8GiB in the smallest case, of at most 128MiB",
        ),
        (["--case", "layers", "--against", "nixl"], "--against has no effect on --case layers"),
        (["--case", "layers", "--opcode", "read"], "--opcode has no effect on --case layers"),
        (["--peer-dir", "peers"], "--peer-dir has no effect without --against"),
        (["--round-seconds", "nan"], "nan is no number of seconds"),
        (["--json", "no/such/folder/report.json"], "there is no folder no/such/folder"),
    ],
)
def test_r76_what_cannot_be_measured_is_refused_by_name(flags: list[str], told: str) -> None:
    result = CliRunner().invoke(transfer, flags)
    assert result.exit_code == 2
    assert told in " ".join(result.output.split())


def test_the_limit_moves_slices_of_fewer_bytes_than_streams(tmp_path: Path) -> None:
    flags = [
        "--case",
        "slices",
        "--sizes",
        "1,9,9",
        "--batches",
        "1",
        "--streams",
        "8",
        "--threads",
        "1",
    ]
    flags += ["--rounds", "1", "--round-seconds", "0", "--json", str(tmp_path / "report.json")]
    result = CliRunner().invoke(transfer, flags)
    assert result.exit_code == 0, result.output
    assert "left out" not in result.output
    titles = next(line for line in result.output.splitlines() if "ours" in line and "case" in line)
    assert "GB/s" not in titles  # what every cell shows
    rows = json.loads((tmp_path / "report.json").read_text())["rows"]
    assert [row["size_bytes"] for row in rows] == [1, 9, 1, 9]
    assert all(row["limit"] for row in rows)


def test_combinations_that_do_not_fit_are_told(tmp_path: Path) -> None:
    flags = ["--sizes", "4KiB,64MiB", "--batches", "1,3", "--streams", "1", "--threads", "1"]
    flags += ["--opcode", "read", "--rounds", "1", "--round-seconds", "0"]
    result = CliRunner().invoke(transfer, flags)
    assert result.exit_code == 0, result.output
    assert "left out, as their calls need more than 128MiB: 1 cases" in result.output

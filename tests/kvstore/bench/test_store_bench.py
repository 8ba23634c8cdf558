"""`moontide bench store` against ourselves alone, tiny: every case runs and gives its rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from moontide.kvstore.bench import Report
from moontide.kvstore.bench.store.cases import KiB, Limits, MiB
from moontide.kvstore.bench.store.command import CALL_GROUPS, OWN_COURSE, Plan, run_plan, store

ROUNDS = 2
KEYS = 2000


def plan(*groups: str, directory: Path) -> Plan:
    return Plan(
        against=(),
        groups=groups,
        sizes=(4 * KiB, 64 * KiB),
        limits=Limits(rounds=ROUNDS, budget_seconds=0.0, pool_bytes=32 * MiB),
        num_keys=KEYS,
        nvme_dram_bytes=16 * MiB,
        largest_bytes=2 * MiB,
        peer_dir=directory / "peers",
        directory=directory,
    )


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return run_plan(plan(*CALL_GROUPS, directory=tmp_path_factory.mktemp("bench")))


def test_every_case_of_calls_has_a_row_with_its_limit(calls: Report) -> None:
    names = {row.case for row in calls.rows}
    for expected in (
        *("put", "get, located", "get, one round trip", "view, one round trip"),
        *("batch put", "batch get, located", "batch get, one round trip"),
        *("put, nothing mapped yet", "get, nothing mapped yet"),
    ):
        assert expected in names
    for row in calls.rows:
        assert row.ours.keys() == row.limit.keys() == {"p50_us", "p99_us", "gb_per_s"}
        assert row.ours["p50_us"].count == ROUNDS
        assert row.ours["p99_us"].median >= row.ours["p50_us"].median > 0
        assert row.ratio.keys() == {"limit"}


def test_the_report_tells_the_settings_it_was_made_with(calls: Report) -> None:
    assert calls.settings["rounds"] == str(ROUNDS)
    assert calls.settings["pool"] == "32MiB"
    assert {"load_before", "load_after", "version ours", "version limit"} <= calls.settings.keys()


def test_many_entries_cost_memory_that_clear_gives_back(tmp_path: Path) -> None:
    report = run_plan(plan("many", directory=tmp_path))
    puts, exists, memory = report.rows
    assert puts.ours["puts_per_s"].median > 0
    assert exists.batch == 1000
    assert memory.ours.keys() == {"bytes_per_key", "after_clear"}


def test_a_full_pool_refuses_nothing_and_one_put_evicts_within_its_bound(tmp_path: Path) -> None:
    mixed, largest = run_plan(plan("full", directory=tmp_path)).rows
    assert mixed.ours["refused"].median == 0
    assert mixed.ours["puts"].median > 10
    assert largest.ours["evicted_per_put_bytes"].high <= 4


def test_a_burst_of_three_times_dram_loses_nothing(tmp_path: Path) -> None:
    written, read = run_plan(plan("nvme", directory=tmp_path)).rows
    assert written.ours["gb_per_s"].median > 0
    assert read.ours["lost"].high == 0


def test_an_unknown_peer_and_a_wrong_size_are_refused_by_name() -> None:
    for flags, name in (("--against", "memcached"), ("--sizes", "4 cows")):
        result = CliRunner().invoke(store, [flags, name])
        assert result.exit_code == 1
        assert name in result.output


def test_a_peer_that_cannot_be_installed_is_told_and_left_out(tmp_path: Path) -> None:
    """Its folder is a file, so that no environment can be made there."""
    (tmp_path / "peers").write_text("")
    flags = ["--against", "redis", "--case", "cold", "--sizes", "64KiB", "--rounds", "1"]
    places = ["--peer-dir", str(tmp_path / "peers"), "--json", str(tmp_path / "report.json")]
    result = CliRunner().invoke(store, [*flags, *places, "--dram", "64MiB"])
    assert result.exit_code == 0
    assert "redis is left out" in result.output
    rows = json.loads((tmp_path / "report.json").read_text())["rows"]
    assert rows
    assert all("redis" not in row["peers"] for row in rows)


def test_groups_that_can_be_asked_for_are_those_there_are() -> None:
    case = next(parameter for parameter in store.params if parameter.name == "groups")
    assert set(case.type.choices) == {*CALL_GROUPS, *OWN_COURSE}  # type: ignore[attr-defined]


def test_a_trace_is_replayed_by_the_policy_and_through_a_daemon(tmp_path: Path) -> None:
    """Blocks 1 and 2 come again in the second request, and both tiers hold all there are."""
    requests = [
        {"timestamp": number, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2, last]}
        for number, last in enumerate((3, 4))
    ]
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in requests))
    flags = ["--trace", str(tmp_path / "trace.jsonl"), "--policy", "slru", "--dram-blocks", "512"]
    places = ["--directory", str(tmp_path), "--json", str(tmp_path / "report.json")]
    result = CliRunner().invoke(store, [*flags, "--nvme-blocks", "0", *places])
    assert result.exit_code == 0, result.output
    alone, through = json.loads((tmp_path / "report.json").read_text())["rows"]
    for row in (alone, through):
        assert row["ours"]["hit_ratio"]["median"] == pytest.approx(2 / 6)
        assert row["ours"]["hit_ratio_second_half"]["median"] == pytest.approx(2 / 3)
    assert "slru in a daemon" in through["case"]

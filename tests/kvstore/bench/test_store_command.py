"""`moontide bench store` as a command: its flags, peers, and cases on other ground than a pool."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from moontide.kvstore.bench.store.command import store
from moontide.kvstore.bench.store.plan import CALL_GROUPS, OWN_COURSE


def test_a_burst_of_three_times_dram_loses_nothing(tmp_path: Path) -> None:
    json_file = tmp_path / "report.json"
    flags = ["--case", "nvme", "--nvme-dram", "32MiB", "--rounds", "2"]
    places = ["--directory", str(tmp_path), "--json", str(json_file)]
    result = CliRunner().invoke(store, [*flags, *places])
    assert result.exit_code == 0, result.output
    written, read = json.loads(json_file.read_text())["rows"]
    assert written["ours"]["gb_per_s"]["median"] > 0
    assert written["limit"]["gb_per_s"]["count"] == 2
    assert read["ours"]["lost"]["high"] == 0


def test_an_unknown_peer_and_a_wrong_size_are_refused_by_name() -> None:
    for flags, name in (("--against", "memcached"), ("--sizes", "4 cows")):
        result = CliRunner().invoke(store, [flags, name])
        assert result.exit_code == 2
        assert name in result.output


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--policy", "slru"], "--policy has no effect without --trace"),
        (["--case", "nvme", "--sizes", "4KiB"], "--sizes has no effect on --case nvme, but on"),
        (["--case", "view", "--case", "full", "--keys", "1000"], "--keys has no effect on"),
        (["--peer-dir", "peers"], "--peer-dir has no effect without --against"),
        (["--directory", "no/such"], "'no/such' does not exist"),
        (["--json", ""], ". is a folder"),
        (["--dram", "31MiB"], "--dram 31MiB: give at least 32MiB"),
        (["--nvme-dram", "1"], "--nvme-dram 1: give at least 32MiB"),
        (["--dram", "32MiB", "--case", "batch"], "32 values of 1MiB are more than two thirds of"),
        (["--dram", "64MiB", "--case", "full"], "puts values of 64MiB, more than two thirds of"),
        (["--dram", "96MiB", "--case", "killed"], "on each of 3 nodes, together more than"),
    ],
)
def test_r76_what_no_run_can_use_is_refused_by_name(flags: list[str], told: str) -> None:
    result = CliRunner().invoke(store, flags)
    assert result.exit_code == 2
    assert told in " ".join(result.output.split())


def test_r76_a_flag_of_cases_is_refused_beside_a_trace(tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_text("")
    result = CliRunner().invoke(store, ["--trace", str(tmp_path / "trace.jsonl"), "--quick"])
    assert result.exit_code == 2
    assert "--quick has no effect beside --trace" in result.output


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
    assert set(case.type.choices) == {*CALL_GROUPS, *OWN_COURSE}  # type: ignore[attr-defined]  # a Choice


def test_a_trace_is_replayed_by_the_policy_and_through_a_daemon(tmp_path: Path) -> None:
    """Blocks 1 and 2 come again in the second request, and both tiers hold all there are."""
    requests = [
        {"timestamp": number, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2, last]}
        for number, last in enumerate((3, 4))
    ]
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in requests))
    flags = ["--trace", str(tmp_path / "trace.jsonl"), "--policy", "slru", "--dram-blocks", "4096"]
    places = ["--directory", str(tmp_path), "--json", str(tmp_path / "report.json")]
    result = CliRunner().invoke(store, [*flags, "--nvme-blocks", "0", *places])
    assert result.exit_code == 0, result.output
    alone, through = json.loads((tmp_path / "report.json").read_text())["rows"]
    for row in (alone, through):
        assert row["ours"]["hit_ratio"]["median"] == pytest.approx(2 / 6)
        assert row["ours"]["hit_ratio_second_half"]["median"] == pytest.approx(2 / 3)
    assert "slru in a daemon" in through["case"]

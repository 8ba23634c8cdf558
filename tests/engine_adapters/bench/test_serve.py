"""`moontide bench serve` as a user runs it, on a tiny model."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from moontide.engine_adapters.builtin.bench.command import serve
from moontide.engine_adapters.builtin.bench.measuring import BLOCK_TOKENS
from moontide.kvstore.bench import Report

from ...cluster_process import SMALL


def bench_serve(*arguments: str) -> Result:
    """In this process, which has torch already; what it starts is as `moontide up` starts it, with
    little memory."""
    environment = {**SMALL, "MOONTIDE_WORKER_BLOCK_TOKENS": str(BLOCK_TOKENS)}
    return CliRunner(env=environment).invoke(serve, arguments)


def test_every_comparison_is_measured_and_reported(tmp_path: Path, tiny_model_dir: Path) -> None:
    json_file = tmp_path / "report.json"
    result = bench_serve(
        *("--model", str(tiny_model_dir), "--dram", "64MiB", "--pairs", "1"),
        *("--prompt-tokens", "200", "--case", "caches", "--json", str(json_file)),
    )
    assert result.exit_code == 0, result.stderr
    report = msgspec.json.decode(json_file.read_bytes(), type=Report)
    assert report.settings == {"model": str(tiny_model_dir), "prompt_tokens": "200", "pairs": "1"}
    assert [row.case for row in report.rows] == [
        "cold TTFT / bare forward",
        "dram TTFT / cold TTFT",
        "prefill with the store / without",
    ]
    for row in report.rows:
        ours, limit = row.ours["seconds"], row.limit["seconds"]
        assert 0 < ours.median < 60
        assert row.ratio["limit"] == pytest.approx(limit.median / ours.median)
        assert row.case.split()[0] in result.stdout


@pytest.mark.soak
def test_the_cases_of_two_nodes_are_measured(tmp_path: Path, tiny_model_dir: Path) -> None:
    json_file = tmp_path / "report.json"
    result = bench_serve(
        *("--model", str(tiny_model_dir), "--dram", "64MiB", "--nvme", "256MiB", "--pairs", "1"),
        *("--prompt-tokens", "400", "--json", str(json_file)),
        *("--case", "tiers", "--case", "handoff", "--case", "tbt"),
    )
    assert result.exit_code == 0, result.stderr
    report = msgspec.json.decode(json_file.read_bytes(), type=Report)
    assert [row.case for row in report.rows] == [
        "nvme TTFT / cold TTFT",
        "remote TTFT / cold TTFT",
        "split TTFT / colocated TTFT",
        "p95 TBT while prefills run / without",
    ]


@pytest.mark.soak
def test_a_throttled_node_is_measured_at_every_speed(tmp_path: Path, tiny_model_dir: Path) -> None:
    json_file = tmp_path / "report.json"
    result = bench_serve(
        *("--model", str(tiny_model_dir), "--dram", "64MiB", "--pairs", "1"),
        *("--prompt-tokens", "400", "--case", "throttled", "--json", str(json_file)),
    )
    assert result.exit_code == 0, result.stderr
    report = msgspec.json.decode(json_file.read_bytes(), type=Report)
    speeds = ("unthrottled", "100 Mbit/s", "10 Mbit/s", "1 Mbit/s")
    assert [row.case for row in report.rows] == [
        f"remote TTFT, {speed} / cold TTFT" for speed in speeds
    ]
    assert report.rows[0].note.endswith("; loaded tokens 384")
    assert "; loaded tokens 0; loading alone " in report.rows[-1].note
    assert report.rows[-1].note.endswith(" of the bound")


def test_what_cannot_be_measured_ends_in_one_line() -> None:
    missing = bench_serve("--model", "/nowhere/model.gguf")
    assert missing.exit_code == 1
    assert missing.stderr.startswith("moontide bench serve: ")
    assert "/nowhere/model.gguf" in missing.stderr
    assert len(missing.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--dram", "abc"), "--dram: 'abc' is no size"),
        (("--nvme", "1x"), "--nvme: '1x' is no size"),
        (("--dram", "63MiB"), "--dram 63MiB: give at least 64MiB"),
        (
            ("--case", "caches", "--case", "tbt", "--link", "10 Mbit/s"),
            "--link has no effect on --case caches, tbt, but on throttled",
        ),
    ],
)
def test_r76_what_no_run_can_use_is_refused_before_it(flags: tuple[str, ...], told: str) -> None:
    result = bench_serve(*flags)
    assert result.exit_code == 2
    assert told in result.output


def test_a_report_that_could_not_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    result = bench_serve("--json", str(tmp_path / "missing" / "report.json"))
    assert result.exit_code == 2
    assert "there is no folder" in result.stderr

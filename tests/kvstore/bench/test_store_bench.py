"""`moontide bench store` against ourselves alone, tiny: every case runs and gives its rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from moontide.kvstore.bench import Report
from moontide.kvstore.bench.store.cases import Budget, KiB, MiB
from moontide.kvstore.bench.store.plan import CALL_GROUPS, Plan, run_plan

ROUNDS = 2
KEYS = 2000
REMOTE_LOGS = {"remote-ours.log", "remote-limit.log"}
LOCAL_LOGS = {"ours.log", "limits.log"}
DRIVER_LOGS = REMOTE_LOGS | LOCAL_LOGS


def plan(*groups: str, directory: Path) -> Plan:
    return Plan(
        against=(),
        groups=groups,
        sizes=(4 * KiB, 64 * KiB),
        budget=Budget(rounds=ROUNDS, round_seconds=0.0, pool_bytes=32 * MiB),
        num_keys=KEYS,
        nvme_dram_bytes=32 * MiB,
        largest_bytes=2 * MiB,
        watch_seconds=0.5,
        peer_dir=directory / "peers",
        directory=directory,
    )


class Watching:
    """As `print`; notes whose logs there are when something is said."""

    def __init__(self, directory: Path) -> None:
        self.logs: set[str] = set()
        self._directory = directory

    def __call__(self, told: str) -> None:
        print(told)
        self.logs |= {log.name for log in self._directory.rglob("*.log")} & DRIVER_LOGS


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return run_plan(plan(*CALL_GROUPS, directory=tmp_path_factory.mktemp("bench")), print)


def test_every_case_of_calls_has_a_row_with_its_limit(calls: Report) -> None:
    names = {row.case for row in calls.rows}
    for expected in (
        *(
            "put",
            "get, located",
            "get, one round trip",
            "view, one round trip",
            "view, under a held ticket",
        ),
        *("batch put", "batch get, located", "batch get, one round trip"),
        *("put, nothing mapped yet", "get, nothing mapped yet"),
    ):
        assert expected in names
    for row in calls.rows:
        rate = set() if row.case.startswith("view") else {"gb_per_s"}
        assert row.ours.keys() == row.limit.keys() == {"p50_us", "p99_us"} | rate
        assert row.ours["p50_us"].count == ROUNDS
        assert row.ours["p99_us"].median >= row.ours["p50_us"].median > 0
        assert row.ratio.keys() == {"limit"}


def test_remote_values_have_rows_of_their_own(tmp_path: Path) -> None:
    say = Watching(tmp_path)
    report = run_plan(plan("remote", directory=tmp_path), say)
    assert say.logs == REMOTE_LOGS
    assert {"version ours", "version limit"} <= report.settings.keys()
    single = {"remote put", "remote get", "remote get, first time"}
    assert {row.case for row in report.rows if row.batch == 1} == single
    assert {row.case for row in report.rows if row.batch > 1} == {
        name.replace("remote", "remote batch") for name in single
    }
    for row in report.rows:
        assert row.ours["p50_us"].count == ROUNDS
        assert row.ratio.keys() == ({"limit"} if row.batch == 1 else set())


def test_the_report_tells_the_settings_it_was_made_with(calls: Report) -> None:
    assert calls.settings["rounds"] == str(ROUNDS)
    assert calls.settings["pool"] == "32MiB"
    assert {"load_before", "load_after", "version ours", "version limit"} <= calls.settings.keys()


def test_many_entries_cost_memory_that_clear_gives_back(tmp_path: Path) -> None:
    report = run_plan(plan("many", directory=tmp_path), print)
    puts, exists, memory = report.rows
    assert puts.ours["puts_per_s"].median > 0
    assert exists.batch == 1000
    assert memory.ours.keys() == {"bytes_per_key", "after_clear"}


def test_a_full_pool_refuses_nothing_and_one_put_evicts_within_its_bound(tmp_path: Path) -> None:
    say = Watching(tmp_path)
    mixed, largest = run_plan(plan("full", directory=tmp_path), say).rows
    assert say.logs == LOCAL_LOGS
    assert mixed.ours["refused"].median == 0
    assert mixed.ours["puts"].median > 10
    assert largest.ours["evicted_per_put"].high <= 4

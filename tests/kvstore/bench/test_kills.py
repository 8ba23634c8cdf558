"""`moontide bench store --case killed`: real clusters of three, one node of which is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from moontide.kvstore.bench import Row
from moontide.kvstore.bench.drivers.store.kills import Call, told_of
from moontide.kvstore.bench.drivers.store.ours_killed import CALL_SECONDS
from moontide.kvstore.bench.store.cases import MiB
from moontide.kvstore.bench.store.killed import VICTIMS, Killed


def check_rows(rows: list[Row], victim: str) -> None:
    """Whatever the machine's speed."""
    assert [(row.case, *row.ours) for row in rows] == [
        (f"{victim}: {case}", figure)
        for operation in ("reads", "puts")
        for case, figure in (
            (f"longest time without {operation}", "gap_seconds"),
            (f"{operation} that failed", "failed_ratio"),
            (f"longest call of {operation}", "longest_call_seconds"),
        )
    ]
    for gap, failed, longest in (rows[:3], rows[3:]):
        assert gap.ours["gap_seconds"].low > 0
        assert 0 <= failed.ours["failed_ratio"].median <= 1
        assert longest.ours["longest_call_seconds"].low > 0
        assert longest.limit["longest_call_seconds"].median == CALL_SECONDS


def test_a_killed_node_of_the_client_is_measured(tmp_path: Path) -> None:
    killed = Killed(tmp_path, 16 * MiB, rounds=1, watch_seconds=0.1, peers={}, say=print)
    check_rows(list(killed.rows_of("own")), VICTIMS["own"])
    assert killed.versions.keys() == {"ours"}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.soak
def test_r57_calls_go_on_while_a_node_is_killed_whichever_it_is(tmp_path: Path) -> None:
    killed = Killed(tmp_path, 64 * MiB, rounds=2, watch_seconds=10.0, peers={}, say=print)
    rows = killed.rows()
    for number, victim in enumerate(VICTIMS.values()):
        of_victim = rows[number * 6 : (number + 1) * 6]
        check_rows(of_victim, victim)
        for gap, failed, _ in (of_victim[:3], of_victim[3:]):
            assert gap.ours["gap_seconds"].high < 5.0
            assert failed.ours["failed_ratio"].high < 0.1


def test_what_is_told_of_a_kill_counts_from_the_last_success_before_it_to_the_end() -> None:
    calls = [
        Call(ended=1.0, seconds=0.9, has_succeeded=False),  # before the kill: no matter
        Call(ended=1.9, seconds=0.1, has_succeeded=True),
        Call(ended=2.5, seconds=0.6, has_succeeded=False),  # under way at the kill
        Call(ended=2.75, seconds=0.25, has_succeeded=True),
        Call(ended=3.0, seconds=0.2, has_succeeded=True),
        Call(ended=4.5, seconds=0.4, has_succeeded=True),  # after the end
    ]
    told = told_of(calls, killed_at=2.0, until=3.5)
    assert told["gap_seconds"] == pytest.approx(0.85)
    assert told["failed_ratio"] == pytest.approx(1 / 4)
    assert told["longest_call_seconds"] == pytest.approx(0.6)
    assert told_of(calls[:3], killed_at=2.0, until=4.0)["gap_seconds"] == pytest.approx(2.1)

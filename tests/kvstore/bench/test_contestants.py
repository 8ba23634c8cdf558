"""Contestants' processes: what they answer, and what becomes of those that fail."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from moontide.kvstore.bench.contestants import (
    Contestant,
    ContestantFailed,
    driver_command,
)
from moontide.kvstore.bench.rounds import LIMIT, OURS, Contestants
from moontide.kvstore.bench.store.cases import Budget, call_cases, exists_case
from moontide.kvstore.bench.store.measuring import measure

from ...waiting import wait_until

DRIVER = Path(__file__).with_name("dict_driver.py")
SETTINGS = {"pool_bytes": 1 << 20, "area_bytes": 1 << 20}
ANSWER_SECONDS = 30.0
SMALL = {"size_bytes": 4096, "batch": 2, "calls": 3, "budget_seconds": 1.0, "keep_bytes": 1 << 16}

StartContestant = Callable[..., Contestant]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartContestant]:
    """`start(fault, name)`: a running dict_driver.py that was not asked to begin yet."""
    with ExitStack() as stack:

        def start_contestant(fault: str = "", name: str = "dict") -> Contestant:
            command = [sys.executable, str(DRIVER), fault]
            return stack.enter_context(closing(Contestant(name, command, tmp_path / f"{name}.log")))

        yield start_contestant


def process_state(pid: int) -> str:
    """As ps shows it; empty: it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except FileNotFoundError:
        return ""


@pytest.mark.parametrize("operation", ["put", "get", "get_unseen"])
def test_a_contestant_answers_seconds_of_each_call(start: StartContestant, operation: str) -> None:
    contestant = start()
    contestant.begin(SETTINGS, ANSWER_SECONDS)
    assert contestant.version == "1.0"
    seconds = contestant.ask({"do": operation, **SMALL}, ANSWER_SECONDS)
    assert len(seconds) == SMALL["calls"]
    assert all(value > 0 for value in seconds)


def test_timed_calls_end_when_their_time_is_spent(start: StartContestant) -> None:
    contestant = start()
    contestant.begin(SETTINGS, ANSWER_SECONDS)
    asked = {"do": "put", **SMALL, "calls": 10**6, "budget_seconds": 0.0}
    assert len(contestant.ask(asked, ANSWER_SECONDS)) == 2


@pytest.mark.parametrize("operation", ["put", "get", "get_unseen"])
@pytest.mark.parametrize("fault", ["forgetful", "lossy"])
def test_wrong_bytes_and_refused_puts_are_no_figures(
    start: StartContestant, operation: str, fault: str
) -> None:
    contestant = start(fault)
    contestant.begin(SETTINGS, ANSWER_SECONDS)
    with pytest.raises(ContestantFailed, match=r"other bytes|of a call came through"):
        contestant.ask({"do": operation, **SMALL}, ANSWER_SECONDS)


@pytest.mark.parametrize(
    ("operation", "timeout_s", "message"),
    [
        ("crash", ANSWER_SECONDS, "ended with status 3"),
        ("hang", 0.2, "no answer within its time"),
        ("noise", ANSWER_SECONDS, "noise"),
        ("unheard of", ANSWER_SECONDS, "nothing that can be asked"),
    ],
)
def test_a_contestant_that_fails_says_how(
    start: StartContestant, operation: str, timeout_s: float, message: str
) -> None:
    contestant = start()
    contestant.begin(SETTINGS, ANSWER_SECONDS)
    with pytest.raises(ContestantFailed, match=message):
        contestant.ask({"do": operation}, timeout_s)


def test_a_contestant_that_cannot_begin_says_why(start: StartContestant) -> None:
    with pytest.raises(ContestantFailed, match="no licence"):
        start("cannot begin").begin(SETTINGS, ANSWER_SECONDS)


def test_a_hanging_process_is_gone_after_close(start: StartContestant) -> None:
    contestant = start()
    contestant.begin(SETTINGS, ANSWER_SECONDS)
    with pytest.raises(ContestantFailed):
        contestant.ask({"do": "hang"}, 0.1)
    pid = contestant.pid
    contestant.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_rounds_turn_the_order_and_leave_out_who_fails(start: StartContestant) -> None:
    asked: list[tuple[str, int]] = []
    told: list[str] = []

    def request(name: str, number: int) -> dict[str, Any]:
        asked.append((name, number))
        broken = name == "broken" and number == 1
        return {"do": "crash"} if broken else {"do": "memory"}

    with Contestants(told.append) as contestants:
        for name in ("ours", "broken"):
            contestants.enter(start(name=name), SETTINGS)
        assert contestants.rounds(3, request) == {"ours": [1000] * 3}
        assert list(contestants.versions) == ["ours"]
    assert asked[:4] == [("ours", 0), ("broken", 0), ("broken", 1), ("ours", 1)]
    assert "broken is left out" in told[0]


def test_the_others_stand_still_while_one_is_asked(start: StartContestant) -> None:
    def states() -> str:
        return process_state(first.pid) + process_state(second.pid)

    with Contestants(lambda _: None) as contestants:
        first, second = start(name="first"), start(name="second")
        for contestant in (first, second):
            contestants.enter(contestant, SETTINGS)
        with first.awake():
            wait_until(lambda: states() == "ST")
        wait_until(lambda: states() == "TT")
        assert contestants.ask("second", {"do": "memory"}) == 1000


def test_contestants_that_stand_still_end_with_who_asks() -> None:
    """Whatever ends it."""
    bench = f"""
import os, sys
from pathlib import Path
from moontide.kvstore.bench.contestants import Contestant

contestant = Contestant("dict", [sys.executable, {str(DRIVER)!r}, ""], Path(os.devnull))
with contestant.awake():
    contestant.begin({SETTINGS!r}, {ANSWER_SECONDS})
print(contestant.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    told = subprocess.run(
        [sys.executable, "-c", bench], capture_output=True, timeout=60, check=False
    )
    pid = int(told.stdout)
    wait_until(lambda: process_state(pid) in "Z")


def test_without_ours_there_is_no_measurement(start: StartContestant) -> None:
    with Contestants(lambda _: None) as contestants:
        contestants.enter(start(name=OURS), SETTINGS)
        with pytest.raises(ContestantFailed):
            contestants.ask(OURS, {"do": "crash"})


def test_a_peers_interpreter_runs_a_driver_without_our_packages(tmp_path: Path) -> None:
    """`limits` stands for a peer: its own folder is all it needs."""
    command = driver_command("store.limits", Path(sys.executable))
    with closing(Contestant("peer", command, tmp_path / "log")) as contestant:
        contestant.begin(SETTINGS, ANSWER_SECONDS)
        assert len(contestant.ask({"do": "get", **SMALL}, ANSWER_SECONDS)) == SMALL["calls"]


def test_limits_are_copies_round_trips_and_the_disk(tmp_path: Path) -> None:
    with closing(Contestant(LIMIT, driver_command("store.limits"), tmp_path / "log")) as limit:
        limit.begin(SETTINGS, ANSWER_SECONDS)
        trips = limit.ask({"do": "round_trip", **SMALL}, ANSWER_SECONDS)
        assert len(trips) == SMALL["calls"]
        blocks = {"path": str(tmp_path / "raw"), "block_bytes": 1 << 16, "count": 4}
        assert limit.ask({"do": "direct_write", **blocks}, ANSWER_SECONDS) > 0
        assert limit.ask({"do": "direct_read", **blocks}, ANSWER_SECONDS) > 0
        assert (tmp_path / "raw").stat().st_size == 4 << 16


def test_every_peer_is_asked_the_same_of_each_case(start: StartContestant) -> None:
    budget = Budget(rounds=2, round_seconds=0.0, pool_bytes=8 << 20)
    with Contestants(lambda _: None) as contestants:
        contestants.enter(start(name=OURS), {**SETTINGS, "area_bytes": 4 << 20})
        contestants.enter(start(name="peer"), {**SETTINGS, "area_bytes": 4 << 20})
        for case in call_cases([4096]):
            if case.ours["do"] in ("put", "get", "get_unseen"):
                answers = measure(contestants, case, budget)
                assert {name: len(rounds) for name, rounds in answers.items()} == {
                    OURS: 2,
                    "peer": 2,
                }
    assert exists_case(100).peers == exists_case(100).ours

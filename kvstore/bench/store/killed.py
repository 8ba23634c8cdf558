"""A node killed with -9 under reads and puts: how long none succeeded, how many failed, how long
one took. A cluster of its own for each round."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..contestants import Contestant, driver_command
from ..peers import MOONCAKE_NEEDS, MOONCAKE_PACKAGES, Peer
from ..report import Row, Spread, ratio_interval
from ..rounds import LIMIT, OURS, Answers, Contestants, Say

WATCH_SECONDS = 15.0
QUICK_WATCH_SECONDS = 3.0
VICTIMS = {"holder": "a holder killed", "own": "the client's node killed"}
OPERATIONS = ("reads", "puts")
PEERS: Mapping[str, Peer] = {
    "mooncake": Peer("store.mooncake_killed", MOONCAKE_PACKAGES, MOONCAKE_NEEDS)
}
"""Without a row where the client's node is killed: in its place Mooncake has one master."""
_CASES = {
    "gap_seconds": "{victim}: longest time without {operation}",
    "failed_ratio": "{victim}: {operation} that failed",
    "longest_call_seconds": "{victim}: longest call of {operation}",
}


@dataclass(frozen=True, slots=True)
class Killed:
    """`peers`: the environments of those to measure, too, by name. What ran is in `versions`."""

    directory: Path
    dram_bytes: int  # of each node
    rounds: int
    watch_seconds: float
    peers: Mapping[str, Path]
    say: Say
    versions: dict[str, str] = field(default_factory=dict)

    def rows(self) -> list[Row]:
        """Raises ContestantFailed."""
        return [row for victim in VICTIMS for row in self.rows_of(victim)]

    def rows_of(self, victim: str) -> Iterator[Row]:
        """Of VICTIMS. Raises ContestantFailed."""
        told = VICTIMS[victim]
        self.say(told)
        answers = self._answers(victim)
        for operation in OPERATIONS:
            for figure, case in _CASES.items():
                name = case.format(victim=told, operation=operation)
                yield _row(name, answers, operation, figure)

    def _answers(self, victim: str) -> Answers:
        """Of those that answered in each round."""
        names = [OURS, *(self.peers if victim == "holder" else ())]
        answers: Answers = {name: [] for name in names}
        for number in range(self.rounds):
            for name in names if number % 2 == 0 else reversed(names):
                if len(answers[name]) == number:
                    answer = self._answer(name, victim)
                    answers[name] += [] if answer is None else [answer]
        return {name: given for name, given in answers.items() if len(given) == self.rounds}

    def _answer(self, name: str, victim: str) -> Any:
        """None: it failed."""
        request = {"watch_seconds": self.watch_seconds}
        with (
            tempfile.TemporaryDirectory(prefix="killed-", dir=self.directory) as made,
            Contestants(self.say) as contestants,
        ):
            home = Path(made)
            begin = {**request, "victim": victim, "directory": made, "dram_bytes": self.dram_bytes}
            if name == OURS:
                command = driver_command("store.ours_killed")
                contestants.enter(Contestant(OURS, command, home / "ours.log"), begin)
            else:
                directories = {"peers": self.peers[name], "logs": home}
                contestants.enter_peer(name, PEERS[name], directories, begin)
            self.versions.update(contestants.versions)
            return contestants.ask(name, {"do": "killed", **request})


def _row(case: str, answers: Answers, operation: str, figure: str) -> Row:
    values = {
        name: [answer[operation][figure] for answer in rounds] for name, rounds in answers.items()
    }
    if figure == "longest_call_seconds":
        values[LIMIT] = [answer["deadline_seconds"] for answer in answers[OURS]]
    figures = {name: {figure: Spread.of(told)} for name, told in values.items()}
    ratios = {
        name: ratio_interval(list(zip(told, values[OURS], strict=True))).median
        for name, told in values.items()
        if name != OURS and all(values[OURS])
    }
    return Row(
        case=case,
        ours=figures[OURS],
        peers={name: told for name, told in figures.items() if name not in (OURS, LIMIT)},
        limit=figures.get(LIMIT, {}),
        ratio=ratios,
        note="limit: our calls' deadline" if LIMIT in values else "",
    )

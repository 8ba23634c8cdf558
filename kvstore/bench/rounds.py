"""Rounds in which every contestant does the same in turn while the others stand still, the order
reversed from round to round, so that what disturbs the machine disturbs all."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .contestants import Contestant, ContestantFailed, driver_command
from .peers import Peer, is_installed, peer_python

ASK_SECONDS = 180.0
OURS = "ours"
LIMIT = "limit"
Say = Callable[[str], None]
Answers = dict[str, list[Any]]
"""By contestant, one answer a round."""


class Contestants:
    """All contestants that run. A peer that fails is told and left out from then on; ours, and the
    limit, end the run."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._running: dict[str, Contestant] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Contestants:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def enter(self, contestant: Contestant, settings: Mapping[str, Any]) -> None:
        """In place of who has its name. Raises ContestantFailed if it is ours or the limit."""
        former = self._running.pop(contestant.name, None)
        if former is not None:
            former.close()
        self._stack.callback(contestant.close)
        try:
            with contestant.awake():
                contestant.begin(settings, ASK_SECONDS)
        except ContestantFailed as error:
            self._leave_out(contestant, error)
        else:
            self._running[contestant.name] = contestant

    def enter_peer(
        self,
        name: str,
        peer: Peer,
        directories: Mapping[str, Path],
        settings: Mapping[str, Any],
    ) -> None:
        """`directories`: where peers' environments and logs lie."""
        if not is_installed(peer, directories["peers"]):
            self._say(f"installs {' '.join(peer.packages)}, once; it may take minutes")
        try:
            python = peer_python(peer, directories["peers"])
        except ContestantFailed as error:
            self._say(f"{name} is left out: {error}")
            return
        log = directories["logs"] / f"{name}.log"
        self.enter(Contestant(name, driver_command(peer.module, python), log), settings)
        if name not in self._running and peer.needs:
            self._say(f"beside its packages {name} needs: {peer.needs}")

    @property
    def versions(self) -> dict[str, str]:
        """Of those that run now."""
        return {name: contestant.version for name, contestant in self._running.items()}

    def ask(self, name: str, request: Mapping[str, Any]) -> Any:
        """None: it failed, or had failed before. Raises ContestantFailed if it is ours or the
        limit."""
        contestant = self._running.get(name)
        if contestant is None:
            return None
        try:
            with contestant.awake():
                return contestant.ask(request, ASK_SECONDS)
        except ContestantFailed as error:
            self._leave_out(contestant, error)
            return None

    def _leave_out(self, contestant: Contestant, error: ContestantFailed) -> None:
        if contestant.name in (OURS, LIMIT):
            raise error
        self._say(f"{contestant.name} is left out from here on: {error}")
        self._running.pop(contestant.name, None)
        contestant.close()

    def rounds(
        self, count: int, request_of: Callable[[str, int], Mapping[str, Any] | None]
    ) -> Answers:
        """`request_of(contestant, round)`: what it is asked, None: nothing. Only who answered every
        round is in the result."""
        answers: Answers = {name: [] for name in self._running}
        for number in range(count):
            names: Sequence[str] = list(answers)
            for name in names if number % 2 == 0 else reversed(names):
                request = request_of(name, number)
                answer = None if request is None else self.ask(name, request)
                if answer is not None:
                    answers[name].append(answer)
        return {name: given for name, given in answers.items() if len(given) == count}

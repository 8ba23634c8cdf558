"""Busy clients share what a pass of the loop gives them, in the order they came."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from moontide.kvstore.daemon import turns
from moontide.kvstore.daemon.turns import Step, Turns


class Loop:
    """A loop whose passes the test takes."""

    def __init__(self) -> None:
        self.soon: list[Step] = []

    def call_soon(self, step: Step) -> None:
        self.soon.append(step)

    def take_pass(self) -> None:
        due, self.soon = self.soon, []
        for step in due:
            step()


class Room:
    """Turns of a loop, where every step costs `cost` seconds, and what was done in which order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cost: float) -> None:
        self.loop = Loop()
        self.turns = Turns(cast(asyncio.AbstractEventLoop, self.loop))
        self.done = ""
        self._now = 0.0
        self._cost = cost
        monkeypatch.setattr(turns, "time", SimpleNamespace(monotonic=lambda: self._now))

    def step(self, name: str) -> Callable[[], None]:
        def act() -> None:
            self.done += name
            self._now += self._cost

        return act


def test_clients_never_fill_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room(monkeypatch, turns.ROUND_SECONDS / 2)
    for name in "abcde":
        room.turns.take(room.step(name))
    done = [room.done]
    while room.loop.soon:
        room.loop.take_pass()
        done.append(room.done)
    assert done == ["ab", "abcd", "abcde"]


def test_a_step_longer_than_a_pass_delays_nobody_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room(monkeypatch, 10 * turns.ROUND_SECONDS)
    for name in "abc":
        room.turns.take(room.step(name))
    for expected in ("ab", "abc"):
        room.loop.take_pass()
        assert room.done == expected


def test_who_comes_back_goes_behind_those_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room(monkeypatch, turns.ROUND_SECONDS)
    greedy = room.step("g")

    def again() -> None:
        greedy()
        room.turns.wait(again)

    room.turns.take(again)
    for name in "ab":
        room.turns.take(room.step(name))
    for _ in range(5):
        room.loop.take_pass()
    assert room.done == "ggabgg"


def test_a_quiet_loop_serves_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room(monkeypatch, turns.ROUND_SECONDS)
    for count in range(1, 4):
        room.turns.take(room.step("x"))
        assert len(room.done) == count
        room.loop.take_pass()
    assert not room.loop.soon

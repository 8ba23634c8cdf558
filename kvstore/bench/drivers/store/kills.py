"""Reads and puts that go on while a node is killed: what every contestant is told to do, and what
is told of it."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from ..contract import Failed

VALUE_BYTES = 4096
REPLICAS = 2
NODES = 3
PACE_SECONDS = 0.002
"""One call so often at most: both sides are offered the same, and each key is read once."""
WARM_SECONDS = 1.0
WARM_CALLS = 20
MOST_WARM_SECONDS = 60.0

Told = dict[str, float]


class Cluster(Protocol):
    """Stores that hold `REPLICAS` of each key of `key_of`, on nodes of which one will be killed."""

    def read(self, number: int) -> bool:
        """Of the key of that number: whether its value came."""

    def put(self, number: int) -> bool:
        """Of a new key, with `REPLICAS`: whether all are there."""

    def kill(self) -> None:
        """-9."""


class _Act(Protocol):
    def __call__(self, number: int, /) -> bool: ...


@dataclass(frozen=True, slots=True)
class Call:
    ended: float
    seconds: float
    has_succeeded: bool


class _Load:
    """One call after another, from a thread of its own, until it is told to end."""

    def __init__(self, act: _Act) -> None:
        self.calls: list[Call] = []
        self.is_over = threading.Event()
        self._act = act

    def run(self) -> None:
        """Raises what `act` raises."""
        for number in itertools.count():
            if self.is_over.is_set():
                return
            began = time.monotonic()
            has_succeeded = self._act(number)
            ended = time.monotonic()
            self.calls.append(Call(ended, ended - began, has_succeeded))
            self.is_over.wait(began + PACE_SECONDS - ended)

    @property
    def is_warm(self) -> bool:
        """Since only a change can be seen of one that has worked."""
        return sum(call.has_succeeded for call in self.calls[-WARM_CALLS:]) == WARM_CALLS


def num_keys(watch_seconds: float) -> int:
    """That are read within the time of one run."""
    return int((WARM_SECONDS + watch_seconds) / PACE_SECONDS) + 1


def bytes_on_each_node(watch_seconds: float) -> int:
    """At most: what is read, and as much that is put."""
    return 2 * num_keys(watch_seconds) * VALUE_BYTES


def key_of(number: int) -> str:
    return f"replicated {number}"


def value_of(key: str) -> bytes:
    return key.encode().ljust(VALUE_BYTES, b".")


def watch_a_kill(cluster: Cluster, request: Mapping[str, Any]) -> dict[str, Told]:
    """Of `reads` and `puts`: seconds of the longest time without one that succeeded, share of those
    that failed, seconds of the longest; from the kill on, for `watch_seconds`. Raises Failed."""
    loads = {"reads": _Load(cluster.read), "puts": _Load(cluster.put)}
    with ThreadPoolExecutor(len(loads)) as threads:
        running = [threads.submit(load.run) for load in loads.values()]
        try:
            _warm_up(list(loads.values()))
            killed_at = time.monotonic()
            cluster.kill()
            time.sleep(request["watch_seconds"])
            until = time.monotonic()
        finally:
            for load in loads.values():
                load.is_over.set()
        for future in running:
            future.result()
    return {name: told_of(load.calls, killed_at, until) for name, load in loads.items()}


def told_of(calls: Sequence[Call], killed_at: float, until: float) -> Told:
    """Calls that were under way at the kill count, and the time up to `until`."""
    since = [call for call in calls if call.ended > killed_at]
    successes = [call.ended for call in calls if call.has_succeeded]
    moments = [
        max((moment for moment in successes if moment <= killed_at), default=killed_at),
        *(moment for moment in successes if killed_at < moment < until),
        until,
    ]
    return {
        "gap_seconds": max(later - earlier for earlier, later in itertools.pairwise(moments)),
        "failed_ratio": sum(not call.has_succeeded for call in since) / len(since),
        "longest_call_seconds": max(call.seconds for call in since),
    }


def _warm_up(loads: Sequence[_Load]) -> None:
    began = time.monotonic()
    time.sleep(WARM_SECONDS)
    while not all(load.is_warm for load in loads):
        if time.monotonic() - began > MOST_WARM_SECONDS:
            raise Failed(f"reads and puts did not succeed within {MOST_WARM_SECONDS:g} s")
        time.sleep(PACE_SECONDS)

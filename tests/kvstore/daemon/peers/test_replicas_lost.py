"""A node of three is killed or stopped under load: what has replicas is read on, puts go elsewhere,
and no call outlasts its deadline."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from moontide.kvstore import PutStatus, StoreClient, StoreError

from ....store_process import StartStore, StoreProcess, start_nodes
from ....waiting import Lateness, wait_until
from ...client.helpers import client_of
from ..warm import admin_of

KEYS = [f"key {number}" for number in range(40)]
DEADLINE_SECONDS = 5.0
SLACK = 1.1
MOST_MISSES = 0.05
"""A live store that is slower than its asker's patience is passed over as well."""
LATE_SECONDS = 0.05
"""Calls during which this machine was later than that say nothing of the stores."""
STALLED_SECONDS = 2.0
"""From when a node is known to be silent until all that came from it has been given up."""


def value_of(key: str) -> bytes:
    return key.encode() * 500


@pytest.fixture
def trio(store_daemon: StartStore, tmp_path: Path) -> list[StoreProcess]:
    return start_nodes(store_daemon, tmp_path, 3, "--dram", "32MiB", "--segment", "4MiB")


class Load:
    """One client's calls, one after another, until it is ended; `begin` and result of each."""

    def __init__(self, node: StoreProcess, act: Callable[[StoreClient, int], object]) -> None:
        self.calls: list[tuple[float, float, object]] = []
        self._act = act
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(node,))
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self, node: StoreProcess) -> None:
        with client_of(node, timeout_s=DEADLINE_SECONDS) as client:
            for number in itertools.count():
                if self._over.is_set():
                    return
                began = time.monotonic()
                try:
                    result = self._act(client, number)
                except StoreError as error:
                    result = error
                self.calls.append((began, time.monotonic() - began, result))


def read(client: StoreClient, number: int) -> bool:
    """From another node each time: what was brought here is dropped again."""
    key = KEYS[number % len(KEYS)]
    found = client.get(key)
    if number % len(KEYS) == len(KEYS) - 1:
        client.clear(nodes="this")
    return found == value_of(key)


def write(client: StoreClient, number: int) -> PutStatus:
    return client.put(f"new {number}", b"n" * 1000, replicas=2).status


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_r57_replicas_are_read_on_and_puts_go_elsewhere(
    trio: list[StoreProcess], how: str, stack: ExitStack
) -> None:
    lost, holder, asker = trio
    with client_of(lost) as client, client_of(holder) as other, client_of(asker) as reader:
        client.put_many([(key, value_of(key)) for key in KEYS])
        for each in (other, reader):
            wait_until(lambda each=each: each.exists_many(KEYS) == [True] * len(KEYS))
        assert other.get_many(KEYS) == [value_of(key) for key in KEYS]  # a replica of each
    wait_until(lambda: _up(asker) == _up(holder) == 2)
    machine = stack.enter_context(Lateness())
    reads, writes = Load(asker, read), Load(holder, write)
    try:
        wait_until(lambda: len(reads.calls) > 60 and len(writes.calls) > 5)
        if how == "killed":
            lost.kill()
        else:
            lost.signal(signal.SIGSTOP)
        lost_at = time.monotonic()
        wait_until(lambda: _up(asker) == _up(holder) == 1)
        silent_at = time.monotonic() + STALLED_SECONDS
        for load in (reads, writes):
            wait_until(lambda load=load: _calls_since(load, silent_at) > 100, 30.0)
    finally:
        reads.end()
        writes.end()
        if how == "stopped":
            lost.signal(signal.SIGCONT)
    for load in (reads, writes):
        taken = (spent - machine.between(at, at + spent) for at, spent, _ in load.calls)
        assert max(taken) < DEADLINE_SECONDS * SLACK
    since = lost_at if how == "killed" else silent_at
    known = [
        result
        for began, seconds, result in reads.calls
        if began > since and machine.between(began, began + seconds) < LATE_SECONDS
    ]
    assert known
    assert known.count(False) <= MOST_MISSES * len(known)
    assert set(known) <= {True, False}  # no errors
    assert _keys_read(reads, since) == set(KEYS)
    last = [result for began, _, result in writes.calls if began > silent_at][-50:]
    assert last == [PutStatus.STORED] * 50


def _keys_read(load: Load, since: float) -> set[str]:
    return {
        KEYS[number % len(KEYS)]
        for number, (began, _, result) in enumerate(load.calls)
        if began > since and result is True
    }


def _up(node: StoreProcess) -> int:
    """How many other stores it can ask."""
    return len(admin_of(node).stats()["peers"]["up"])


def _calls_since(load: Load, moment: float) -> int:
    return sum(began > moment for began, _, _ in load.calls)

"""Each step of the record of floors on the disk is the last of its process (kill -9). What lies
below a floor stays away, and what came to disk since is there."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import traceback
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from moontide.kvstore.daemon.counters import TransportCounters
from moontide.kvstore.daemon.floors import FloorKeeper
from moontide.kvstore.daemon.tiers import Tiering
from moontide.kvstore.durable import write_durably
from moontide.kvstore.keys import BlockKey, EntryId
from moontide.kvstore.membership import FileMembership
from moontide.kvstore.nvme import NvmeSettings

from ..kvstore.nvme.conftest import tmp_path as tmp_path
from ..kvstore.nvme.faults import Countdown, Fault, kill
from ..kvstore.store.conftest import LAYOUT, Node, entry_of, namespace_named, settings_with

NAMESPACE = namespace_named("model")
(WHOLE,) = LAYOUT.whole()
OLD, NEW = ([BlockKey(name * 15 + bytes([n])) for n in range(4)] for name in (b"o", b"n"))
SECONDS = 20.0


def never(_: str) -> None:
    """No fault."""


class Daemon:
    """What of a daemon has to do with floors, over the files in `directory`."""

    def __init__(self, directory: Path, at: Fault) -> None:
        self._node = Node(settings_with())
        self._owner = self._node.connect()
        self._namespace = self._node.store.open_namespace(NAMESPACE)
        self._tiering = Tiering(
            self._node.store,
            NvmeSettings(
                directory=directory / "nvme",
                capacity_bytes=4 << 20,
                region_bytes=64 << 10,
                free_floor_bytes=0,
            ),
            loop=asyncio.get_running_loop(),
            counters=TransportCounters(),
        )
        self._keeper = FloorKeeper(
            self._node.store,
            FileMembership(directory / "cluster"),
            directory,
            self._tiering,
            partial(write_durably, at=at),
        )

    async def run(self, script: Callable[[Daemon], Awaitable[None]]) -> None:
        try:
            await self._keeper.start()
            await script(self)
        finally:
            await self._keeper.close()
            self._tiering.close()
            self._node.store.close()

    def put(self, keys: list[BlockKey]) -> None:
        self._node.put_blocks(self._owner, self._namespace, keys, [WHOLE])

    async def raise_floor(self) -> None:
        await self._keeper.raise_floors([NAMESPACE.digest])

    def on_disk(self, keys: list[BlockKey]) -> list[bool]:
        return [bool(self._tiering.locate_key(EntryId(entry_of(key, WHOLE)))) for key in keys]

    async def until(self, condition: Callable[[], bool]) -> None:
        """As the loop of a daemon does."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SECONDS
        while not condition():
            assert loop.time() < deadline
            self._tiering.tick(loop.time())
            await asyncio.sleep(0.002)

    async def disk_has_caught_up(self) -> None:
        """All that it was given before is durable."""
        done: list[bool] = []
        self._tiering.drop([EntryId(b"sabsent")], done.append)
        await self.until(lambda: bool(done))


def in_child(directory: Path, at: Fault, script: Callable[[Daemon], Awaitable[None]]) -> bool:
    """Runs the script in a process of its own. Whether that was killed."""

    async def run() -> None:
        await Daemon(directory, at).run(script)

    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(run())
        except BaseException:  # noqa: BLE001  # the process ends with it
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


async def store_old(daemon: Daemon) -> None:
    daemon.put(OLD)
    await daemon.until(lambda: all(daemon.on_disk(OLD)))


class RaiseAndStore:
    """Raises the floor and stores new blocks. The record's second change, which says that the disk
    is clear, waits until the disk has had its time for them."""

    def __init__(self, number: int, stored: Path) -> None:
        self._countdown = Countdown(number, kill)
        self._stored = stored
        self._had_time = threading.Event()

    def at(self, point: str) -> None:
        if self._countdown.points.count("create") == 1 and point == "create":
            assert self._had_time.wait(SECONDS)
        self._countdown(point)

    async def __call__(self, daemon: Daemon) -> None:
        await daemon.raise_floor()
        daemon.put(NEW)
        for _ in range(3):
            await daemon.disk_has_caught_up()
        self._note(daemon)
        self._had_time.set()
        await daemon.until(lambda: all(daemon.on_disk(NEW)))
        self._note(daemon)

    def _note(self, daemon: Daemon) -> None:
        if all(daemon.on_disk(NEW)):
            self._stored.touch()


async def look(daemon: Daemon, *, stored: Path) -> None:
    await daemon.disk_has_caught_up()
    assert not any(daemon.on_disk(OLD))
    assert all(daemon.on_disk(NEW)) or not stored.exists()


@pytest.mark.parametrize("first", [1, 2, 3, 4, 5])
def test_r44_a_kill_at_each_step_of_the_record_loses_no_floor_and_nothing_above_it(
    tmp_path: Path, first: int
) -> None:
    """Every fifth step from `first` on."""
    number, was_killed = first, True
    while was_killed:
        directory, stored = tmp_path / str(number), tmp_path / f"stored-{number}"
        directory.mkdir()
        assert not in_child(directory, never, store_old)
        scenario = RaiseAndStore(number, stored)
        was_killed = in_child(directory, scenario.at, scenario)

        assert not in_child(directory, never, partial(look, stored=stored))
        number += 5
    assert stored.exists()
    assert number > first + 5

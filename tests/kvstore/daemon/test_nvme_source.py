"""What the disk brings while other things happen to it."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from moontide.kvstore.daemon.counters import TransportCounters
from moontide.kvstore.daemon.sources import EntriesWanted
from moontide.kvstore.daemon.tiers.source import FILLED_AHEAD_AT_ONCE, NvmeSource
from moontide.kvstore.keys import EntryId, string_entry_id
from moontide.transfer.errors import FileFailed

from ..nvme.conftest import tmp_path as tmp_path
from ..nvme.faults import FaultyStorage
from ..nvme.rig import Rig
from ..store.conftest import MakeNode, Node
from ..store.conftest import make_node as make_node

SECONDS = 30.0
KEY = "replaced"
ENTRY = string_entry_id(KEY)
OLD, NEW = b"o" * 4096, b"n" * 5000


class HeldReads(FaultyStorage):
    """Reads wait for `go_on`."""

    def __init__(self) -> None:
        super().__init__(self._hold)
        self.is_reading, self.go_on = threading.Event(), threading.Event()

    def _hold(self, point: str) -> None:
        if point == "read" and threading.current_thread().name.startswith("nvme-reader"):
            self.is_reading.set()
            assert self.go_on.wait(SECONDS)


class FailedReads(FaultyStorage):
    """From now on."""

    def __init__(self) -> None:
        super().__init__(self._fail)

    def _fail(self, point: str) -> None:
        if point == "read":
            raise FileFailed(OSError(errno.EIO, "no more reads"), "read")


async def until(rig: Rig, condition: Callable[[], object]) -> None:
    """The tier's calls are run meanwhile."""
    deadline = asyncio.get_running_loop().time() + SECONDS
    while not condition():
        assert asyncio.get_running_loop().time() < deadline
        while rig.calls:
            rig.calls.popleft()()
        await asyncio.sleep(0.001)


def source_of(node: Node, rig: Rig) -> NvmeSource:
    return NvmeSource(
        node.store,
        rig.tier,
        loop=asyncio.get_running_loop(),
        counters=TransportCounters(),
        clock=lambda: node.now,
        shards={},
    )


def test_a_value_that_only_the_disk_has_is_found_though_the_one_before_it_is_being_brought(
    tmp_path: Path, make_node: MakeNode
) -> None:
    """It was replaced, and the new value written to disk and evicted, during that read."""
    storage = HeldReads()
    node = make_node()
    owner = node.connect()
    rig = Rig(tmp_path / "nvme", storage=storage)

    async def script() -> None:
        source = source_of(node, rig)
        asked: list[str] = []

        def bring(by: str) -> None:
            source.bring(EntriesWanted([ENTRY], node.now + SECONDS), lambda: asked.append(by))

        assert rig.put(ENTRY, [memoryview(OLD)], namespace="")
        storage.armed = True
        bring("first")
        await until(rig, storage.is_reading.is_set)
        node.put(owner, KEY, NEW, if_exists="replace")
        assert rig.put(ENTRY, [memoryview(NEW)], namespace="")
        node.store.remove([ENTRY], node.now)
        bring("second")
        storage.go_on.set()
        await until(rig, lambda: len(asked) == 2)

    asyncio.run(script())
    assert node.get(owner, KEY) == NEW
    rig.close()


def test_r10_what_the_disk_fails_to_bring_is_no_hit(tmp_path: Path, make_node: MakeNode) -> None:
    storage, node = FailedReads(), make_node()
    rig = Rig(tmp_path / "nvme", storage=storage)
    seen: list[tuple[int, int]] = []

    async def script() -> None:
        source = source_of(node, rig)
        assert rig.put(ENTRY, [memoryview(OLD)], namespace="")
        for _ in range(2):
            source.bring(
                EntriesWanted([ENTRY], node.now + SECONDS),
                lambda: seen.append((source.hits, source.misses)),
            )
            await until(rig, lambda: len(seen) == 1 + storage.armed)
            node.store.remove([ENTRY], node.now)
            storage.armed = True

    asyncio.run(script())
    assert seen == [(1, 0), (1, 1)]
    rig.close()


def test_what_is_read_ahead_comes_a_few_at_a_time_after_what_was_asked_for(
    tmp_path: Path, make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, rig = make_node(), Rig(tmp_path / "nvme")
    entries = [string_entry_id(f"{number:03}") for number in range(60)]
    begun: list[tuple[int, Sequence[bytes]]] = []  # in which turn of the loop
    turns = 0
    reserve = node.store.reserve_entry_fill

    def reserved(owner: int, wanted: Sequence[EntryId], *how: Any, **also: Any) -> Any:
        begun.append((turns, wanted))
        return reserve(owner, wanted, *how, **also)

    monkeypatch.setattr(node.store, "reserve_entry_fill", reserved)

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async def script() -> None:
        source = source_of(node, rig)
        counting = asyncio.create_task(count_turns())
        for asked in (entries[:1], entries[1:17]):
            answered = asyncio.Event()
            source.bring(EntriesWanted(asked, node.now + SECONDS), answered.set)
            assert begun[-1][1] == asked
            await until(rig, answered.is_set)
        await until(rig, lambda: not node.store.absent(entries[:49], node.now))
        counting.cancel()

    for entry in entries:
        assert rig.put(entry, [memoryview(bytes(100))], namespace="")
    asyncio.run(script())
    ahead = begun[2:]
    assert [entry for _, found in ahead for entry in found] == entries[17:49]
    assert max(len(found) for _, found in ahead) == FILLED_AHEAD_AT_ONCE
    assert len({turn for turn, _ in ahead}) == len(ahead)
    rig.close()

"""When replicas are looked after, and which: one store's passes, with peers and time made up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from moontide.kvstore.daemon.peers import repair
from moontide.kvstore.daemon.peers.changes import home_of
from moontide.kvstore.daemon.peers.lots import Item, Lot
from moontide.kvstore.daemon.peers.repair import LONGEST_PASS_SECONDS, PASS_SECONDS, Repair
from moontide.kvstore.keys import EntryId, string_entry_id

ENTRIES = [string_entry_id(f"{number}") for number in range(8)]


class Peers:
    """Those that the roster knows; each takes what it is asked to, unless it is `refusing`."""

    def __init__(self, *nodes: str) -> None:
        self.nodes = list(nodes)
        self.refusing: set[str] = set()
        self.asked: list[str] = []
        self.brought: set[EntryId] = set()

    def neighbours(self) -> list[SimpleNamespace]:
        return [
            SimpleNamespace(
                record=SimpleNamespace(id=node, instance=f"{node}#1"),
                link=SimpleNamespace(is_up=True),
            )
            for node in self.nodes
        ]

    async def replicate(self, neighbour: Any, lot: Lot, replicas: int) -> bool:
        assert replicas == 2
        node = neighbour.record.id
        self.asked.append(node)
        if node in self.refusing:
            return False
        self.brought.update(lot.entries)
        return True


def repair_of(peers: Peers, here: Sequence[EntryId] = ENTRIES) -> Repair:
    wanted = repair.WantedReplicas()
    wanted.want(ENTRIES, 2)
    roster: Any = peers
    index: Any = SimpleNamespace(holders=lambda entry: ())
    return Repair(
        wanted,
        roster,
        index,
        node="here",
        home=home_of,
        lies_here=lambda entries: [Item(entry, b"", 1) for entry in entries if entry in here],
        replicate=peers.replicate,
    )


def passes_of(
    monkeypatch: pytest.MonkeyPatch,
    peers: Peers,
    *looks: Callable[[], object],
    here: Sequence[EntryId] = ENTRIES,
) -> list[float]:
    """Seconds between looks at the cluster; before each of them something happens."""
    pauses: list[float] = []
    left: Iterator[Callable[[], object]] = iter(looks)

    async def sleep(seconds: float) -> None:
        if seconds >= PASS_SECONDS:
            happens = next(left, None)
            if happens is None:
                raise asyncio.CancelledError
            pauses.append(seconds)
            happens()

    paced = SimpleNamespace(sleep=sleep, Event=asyncio.Event, Lock=asyncio.Lock)
    monkeypatch.setattr(repair, "asyncio", paced)
    made = repair_of(peers, here)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(made.run())
    return pauses


def nothing() -> None:
    pass


def test_nothing_is_done_until_the_cluster_has_stayed_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peers = Peers("b", "c", "d")
    seen: list[int] = []

    def leaves() -> None:
        seen.append(len(peers.brought))
        peers.nodes.pop()

    def stays() -> None:
        seen.append(len(peers.brought))

    passes_of(monkeypatch, peers, stays, stays, leaves, leaves, stays, stays)
    assert seen == [0, 0, 0, 0, 0, len(ENTRIES)]


def test_what_is_gone_here_is_not_made_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    peers = Peers("b", "c")
    passes_of(monkeypatch, peers, peers.nodes.pop, nothing, here=ENTRIES[:2])
    assert peers.brought == set(ENTRIES[:2])


def test_passes_that_leave_something_are_further_and_further_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until the cluster is another one, or all is as it should be."""
    peers = Peers("b", "c", "d")
    peers.refusing.update(peers.nodes)
    fails: list[Callable[[], object]] = [nothing] * 7
    gone, takes = peers.nodes.pop, peers.refusing.clear
    pauses = passes_of(monkeypatch, peers, gone, *fails, gone, nothing, takes, nothing)
    growing = [min(PASS_SECONDS * 2**n, LONGEST_PASS_SECONDS) for n in range(7)]
    assert pauses[:8] == [PASS_SECONDS, *growing]
    assert pauses[8:] == [LONGEST_PASS_SECONDS, PASS_SECONDS, 2 * PASS_SECONDS, PASS_SECONDS]
    assert peers.brought == set(ENTRIES)


def test_who_took_no_copy_is_asked_no_more_while_there_are_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peers = Peers("b", "c", "d", "e")
    peers.refusing.add("b")
    passes_of(monkeypatch, peers, peers.nodes.pop, nothing, nothing)
    assert peers.asked.count("b") == 1
    assert peers.brought == set(ENTRIES)


def test_what_is_hastened_while_its_replica_is_made_is_looked_at_again() -> None:
    """It may have been removed and put again: the replica went with the first."""

    class Hastening(Peers):
        async def replicate(self, neighbour: Any, lot: Lot, replicas: int) -> bool:
            taken = await super().replicate(neighbour, lot, replicas)
            if len(self.asked) == 1:
                made.hasten(lot.entries)
                due.append(made.num_due)
            else:
                again.set()
            return taken

    due: list[int] = []
    made = repair_of(Hastening("b"))
    again = asyncio.Event()

    async def run() -> None:
        made.hasten(ENTRIES[:1])
        making = asyncio.create_task(made.run_hastened())
        async with asyncio.timeout(10.0):
            await again.wait()
        assert due == [2]
        making.cancel()
        await asyncio.wait({making})

    asyncio.run(run())

"""When a change of a string entry may be made: once all that might have it are known, and agree."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest

from moontide.kvstore import Busy, PutStatus, StoreClient, StoreUnavailable
from moontide.kvstore.daemon.peers.changes import Bar, ClusterChanges, home_of
from moontide.kvstore.daemon.peers.connection import LinkIdentity
from moontide.kvstore.daemon.peers.copies import PeerCopies
from moontide.kvstore.daemon.peers.fences import Fences
from moontide.kvstore.daemon.peers.repair import Repair, WantedReplicas
from moontide.kvstore.daemon.peers.roster import Roster
from moontide.kvstore.daemon.peers.tasks import TaskGroup
from moontide.kvstore.daemon.removals import BlockRemovals
from moontide.kvstore.following import event_session
from moontide.kvstore.index import PrefixIndex
from moontide.kvstore.keys import EntryId, string_entry_id
from moontide.kvstore.membership import FileMembership, Member, Membership, MemoryMembership
from moontide.kvstore.store import Store
from moontide.transfer.engine import tcp_engine

from ....store_process import StartStore
from ....waiting import wait_until
from ...client.helpers import client_of
from ...store.conftest import Node
from ...store.conftest import make_node as make_node
from ...store.conftest import node as node
from .test_late_events import LEASE_SECONDS, record_of, start_alone

Strangers = tuple[list[StoreClient], Callable[[int, int], None]]


class Unlisted(MemoryMembership):
    """Keeps floors and says nothing of members."""

    def members(self) -> list[Member]:
        raise StoreUnavailable("nobody answers")


@asynccontextmanager
async def roster_of(store: Store, membership: Membership) -> AsyncIterator[Roster]:
    """It knows nobody yet."""
    engine, session = tcp_engine(b"token", store.instance), event_session("token")
    try:
        yield Roster(
            membership,
            LinkIdentity(str(store.instance), b"token"),
            node=store.instance.node,
            index=PrefixIndex(),
            engine=engine,
            session=session,
        )
    finally:
        await session.close()
        engine.close()


def changes_of(
    store: Store, roster: Roster, tasks: TaskGroup, removals: BlockRemovals, bar: Bar
) -> ClusterChanges:
    index = PrefixIndex()
    repair = Repair(
        WantedReplicas(),
        roster,
        index,
        node="a",
        home=home_of,
        lies_here=lambda _: [],
        replicate=PeerCopies(store, roster, index, lambda _: 0).replicate,
    )
    return ClusterChanges(
        store,
        roster,
        Fences(),
        tasks,
        bar=bar,
        removals=removals,
        namespaces_of=lambda _: set(),
        repair=repair,
        copies="keep",
    )


def test_a_change_is_not_made_while_nobody_says_who_is_there(node: Node, tmp_path: Path) -> None:
    """A store that came back after the last look that succeeded would keep its older value."""

    async def scenario() -> None:
        tasks, barred = TaskGroup(), list[object]()
        membership = Unlisted(time.monotonic)
        async with roster_of(node.store, membership) as roster:
            removals = BlockRemovals(node.store, None, membership, tmp_path)
            changes = changes_of(node.store, roster, tasks, removals, barred.append)
            change: asyncio.Future[object] = asyncio.get_running_loop().create_future()
            entries = [string_entry_id("changed")]
            changes.change(entries, change.set_result, change.set_exception)
            with pytest.raises(StoreUnavailable, match="nobody answers"):
                await change
            assert barred
            await tasks.close()

    asyncio.run(scenario())


class Watched(MemoryMembership):
    """Sees at each look whether a file was there."""

    def __init__(self, file: Path) -> None:
        super().__init__(time.monotonic)
        self._file = file
        self.seen: list[bool] = []

    def members(self) -> list[Member]:
        self.seen.append(self._file.exists())
        return super().members()


def test_a_removal_is_written_down_before_the_last_look_at_who_is_there(
    node: Node, tmp_path: Path
) -> None:
    """Who joins while a slow disk writes would bring the block from here and keep it."""

    async def scenario() -> None:
        tasks, membership = TaskGroup(), Watched(tmp_path / "removals.json")
        removals = BlockRemovals(node.store, None, membership, tmp_path)
        await removals.settle(10.0)
        async with roster_of(node.store, membership) as roster:
            changes = changes_of(node.store, roster, tasks, removals, lambda _: None)
            change: asyncio.Future[object] = asyncio.get_running_loop().create_future()
            blocks, digest = [EntryId(b"k" + bytes(16))], bytes(32)
            changes.change(blocks, change.set_result, change.set_exception, namespaces=[digest])
            await change
            await tasks.close()
        await removals.close()
        assert membership.seen[-1]
        assert digest.hex() in (tmp_path / "removals.json").read_text()

    asyncio.run(scenario())


@pytest.fixture
def strangers(store_daemon: StartStore, tmp_path: Path) -> Iterator[Strangers]:
    """Clients of three stores, each in a membership of its own: the first and either of the others
    know each other, these two only once they are introduced."""
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text("token-of-three-clusters")
    folders = [tmp_path / name for name in "abc"]
    nodes = [start_alone(store_daemon, token, folder) for folder in folders]
    memberships = [FileMembership(folder) for folder in folders]
    records = [record_of(membership) for membership in memberships]

    def introduce(one: int, other: int) -> None:
        memberships[one].register(records[other], LEASE_SECONDS)
        memberships[other].register(records[one], LEASE_SECONDS)

    introduce(0, 1)
    introduce(0, 2)
    with ExitStack() as stack:
        clients = [stack.enter_context(client_of(node)) for node in nodes]
        for client, count in zip(clients, (2, 1, 1), strict=True):
            wait_until(lambda c=client, n=count: len(c.stats()["peers"]["up"]) == n)
        yield clients, introduce


def test_a_change_that_passes_by_a_store_which_another_one_knows_is_not_made(
    strangers: Strangers,
) -> None:
    """The first would bring the old value from the third, and keep it."""
    (first, second, third), introduce = strangers
    third.put("key", b"old")
    wait_until(lambda: first.exists("key"))
    with pytest.raises(Busy, match="store node-c may hold a copy"):
        second.put("key", b"new", if_exists="replace", timeout_s=20.0)
    assert first.get("key") == b"old"
    introduce(1, 2)
    for client in (second, third):
        wait_until(lambda client=client: len(client.stats()["peers"]["up"]) == 2)
    assert second.put("key", b"new", if_exists="replace").status is PutStatus.STORED
    assert [client.get("key") in (None, b"new") for client in (first, second, third)] == [True] * 3
    wait_until(lambda: third.get("key") == b"new")

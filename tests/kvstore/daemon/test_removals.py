"""Which blocks a store forgets when it comes back, since some were removed without it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from moontide.kvstore import Busy, StoreUnavailable
from moontide.kvstore.daemon import removals
from moontide.kvstore.daemon.removals import BlockRemovals
from moontide.kvstore.keys import BlockKey
from moontide.kvstore.membership import MemoryMembership

from ..store.conftest import LAYOUT, MakeNode, Node, namespace_named
from ..store.conftest import make_node as make_node

SEEN, OTHER = namespace_named("removed from"), namespace_named("other")


class Away(MemoryMembership):
    """Fails as often as it is to."""

    failures = 0

    def floors(self) -> dict[str, int]:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("away")
        return super().floors()


class Slow(Away):
    """What it answered with is old by the time it arrives."""

    def __init__(self) -> None:
        super().__init__(time.monotonic)
        self.asked = threading.Event()
        self.answer = threading.Event()

    def floors(self) -> dict[str, int]:
        found = super().floors()
        self.asked.set()
        assert self.answer.wait(10.0)
        return found


class Disk:
    """Clears when it is told to."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    def clear(self, namespace: str, then: Callable[[bool], None]) -> None:
        self.then = then
        self.asked.set()


@pytest.fixture
def membership() -> Away:
    return Away(time.monotonic)


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    """With a block of each namespace."""
    node = make_node()
    owner, shards = node.connect(), LAYOUT.whole()
    for namespace, name in ((SEEN, "seen"), (OTHER, "other")):
        key = BlockKey(name.encode().rjust(16))
        node.put_blocks(owner, node.store.open_namespace(namespace), [key], shards)
    return node


def namespaces(node: Node) -> list[str]:
    """Of each block that is there."""
    page = node.store.list_blocks(namespace=None, key_prefix=b"", limit=10, cursor="", now=node.now)
    return [entry.namespace for entry in page.entries]


def live(
    node: Node,
    membership: Away,
    folder: Path,
    act: Callable[[BlockRemovals], Awaitable[None]] | None = None,
) -> None:
    """One life of a store, which does something once it has settled."""

    async def run() -> None:
        made = BlockRemovals(node.store, None, membership, folder)
        with pytest.raises(Busy):
            made.check_settled()
        await made.settle(10.0)
        made.check_settled()
        if act is not None:
            await act(made)
        await made.close()

    asyncio.run(run())


async def remove(made: BlockRemovals) -> None:
    """A block that nobody has."""
    await made.note(await made.count([SEEN.digest]))


def test_who_was_not_there_forgets_the_namespace_once(
    node: Node, membership: Away, tmp_path: Path
) -> None:
    here, away = tmp_path / "here", tmp_path / "away"
    for folder in (here, away):
        folder.mkdir()
        live(node, membership, folder)
    live(node, membership, here, remove)
    live(node, membership, here)
    assert len(namespaces(node)) == 2
    live(node, membership, away)
    assert namespaces(node) == [OTHER.digest.hex()]
    live(node, membership, away, remove)
    live(node, membership, here)  # which was away now
    live(node, membership, away)
    assert namespaces(node) == [OTHER.digest.hex()]


def test_who_cannot_say_what_it_has_seen_forgets(
    node: Node, membership: Away, tmp_path: Path
) -> None:
    live(node, membership, tmp_path, remove)
    live(node, membership, tmp_path)
    assert len(namespaces(node)) == 2
    (tmp_path / "removals.json").write_bytes(b"{torn")
    live(node, membership, tmp_path)
    assert namespaces(node) == [OTHER.digest.hex()]


def test_r29_a_membership_that_was_wiped_is_told_again(
    node: Node, membership: Away, tmp_path: Path
) -> None:
    """Who knows the numbers forgets nothing, who comes back later does."""
    live(node, membership, tmp_path, remove)
    before = membership.floors()
    wiped = Away(time.monotonic)
    live(node, wiped, tmp_path)
    assert len(namespaces(node)) == 2
    assert wiped.floors() == before
    (tmp_path / "away").mkdir()
    live(node, wiped, tmp_path / "away")
    assert namespaces(node) == [OTHER.digest.hex()]


def test_until_the_membership_can_be_read_nobody_counts_on_the_store(
    node: Node, membership: Away, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removals, "RETRY_SECONDS", 0.0)
    (tmp_path / "here").mkdir()
    live(node, membership, tmp_path / "here", remove)
    membership.failures = 3

    async def lapse(made: BlockRemovals) -> None:
        assert membership.failures == 0
        made.unsettle()
        with pytest.raises(Busy, match="retry"):
            made.check_settled()
        await made.note({OTHER.digest: 7})  # what it may not have seen whole
        await made.settle(10.0)
        made.check_settled()

    live(node, membership, tmp_path, lapse)
    assert namespaces(node) == [OTHER.digest.hex()]
    assert OTHER.digest.hex() not in (tmp_path / "removals.json").read_text()


def test_a_look_at_the_membership_from_before_a_lapse_settles_nothing(
    node: Node, tmp_path: Path
) -> None:
    membership = Slow()
    other = BlockRemovals(node.store, None, membership, tmp_path / "other")

    async def run() -> None:
        made = BlockRemovals(node.store, None, membership, tmp_path)
        settling = asyncio.create_task(made.settle(10.0))
        await asyncio.to_thread(membership.asked.wait)
        made.unsettle()
        await other.count([SEEN.digest])
        membership.answer.set()
        await settling
        with pytest.raises(Busy):
            made.check_settled()
        await made.settle(10.0)
        made.check_settled()
        await made.close()

    asyncio.run(run())
    assert namespaces(node) == [OTHER.digest.hex()]


def test_a_store_that_ends_while_its_disk_forgets_hears_of_it_no_more(
    node: Node, membership: Away, tmp_path: Path
) -> None:
    disk: Any = Disk()

    async def run() -> None:
        made = BlockRemovals(node.store, disk, membership, tmp_path)
        await made.count([SEEN.digest])
        settling = asyncio.create_task(made.settle(10.0))
        await disk.asked.wait()
        await made.close()
        await settling
        disk.then(True)

    asyncio.run(run())

"""String entries of a store whose lease may have ended, and when it is registered again."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moontide.kvstore import StoreTimeout, StoreUnavailable
from moontide.kvstore.daemon.daemon import StoreDaemon
from moontide.kvstore.daemon.removals import BlockRemovals
from moontide.kvstore.membership import MemoryMembership

from ..store.conftest import MakeNode, Node
from ..store.conftest import make_node as make_node

KEY = "key"


class Membership:
    """What a daemon asks of its marks there."""

    def __init__(self, says: bool | Exception) -> None:
        self._says = says
        self.is_enrolled = False

    def has_missed(self) -> bool:
        if isinstance(self._says, Exception):
            raise self._says
        return self._says

    def enrol(self) -> None:
        self.is_enrolled = True


def daemon_of(node: Node, folder: Path, says: bool | Exception) -> Any:
    """As far as it needs to be for that; without a disk. `told`: what its peers were."""
    node.put(node.connect(), KEY, b"value")
    told: list[str] = []
    daemon: Any = object.__new__(StoreDaemon)
    daemon._store, daemon._tiering, daemon._absences = node.store, None, Membership(says)
    daemon._removals = BlockRemovals(node.store, None, MemoryMembership(time.monotonic), folder)
    daemon._peers = SimpleNamespace(
        told=told, left=lambda: told.append("left"), joined=lambda: told.append("joined")
    )
    return daemon


def has_value(node: Node) -> bool:
    return node.get(node.connect(), KEY) is not None


def test_r58_what_others_may_change_is_gone_before_the_store_registers_again(
    make_node: MakeNode, tmp_path: Path
) -> None:
    """From then on it would be served, while the marks are still being read."""
    node = make_node()
    daemon = daemon_of(node, tmp_path, says=False)
    daemon._lapsed()
    assert not has_value(node)
    assert daemon._peers.told == ["left"]


@pytest.mark.parametrize(
    "says", [True, StoreUnavailable("away"), StoreTimeout("late"), TimeoutError("file server")]
)
def test_what_was_changed_or_cannot_be_known_is_forgotten(
    says: bool | Exception, make_node: MakeNode, tmp_path: Path
) -> None:
    node = make_node()
    daemon = daemon_of(node, tmp_path, says)
    asyncio.run(daemon._catch_up())
    assert not has_value(node)
    assert daemon._absences.is_enrolled == (says is True)
    assert daemon._peers.told == ["joined"]


def test_what_nobody_changed_is_kept(make_node: MakeNode, tmp_path: Path) -> None:
    node = make_node()
    daemon = daemon_of(node, tmp_path, says=False)
    asyncio.run(daemon._catch_up())
    assert has_value(node)
    assert daemon._absences.is_enrolled

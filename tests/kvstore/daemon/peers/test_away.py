"""What is removed, replaced or cleared while a node is away is gone there, too, when it comes back:
whoever starts first, and whether anybody is left to ask."""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from moontide.kvstore import PutStatus, StoreClient, StoreError, wire
from moontide.kvstore.keys import string_entry_id

from ....store_process import StartStore, StoreProcess, start_nodes
from ....waiting import wait_until
from ...client.helpers import NAMESPACE, TOKENS, client_of, write_prompt
from ..raw_client import local_client
from ..warm import wait_flushed

NVME = ("--nvme", "256MiB")
KEYS = ("removed", "replaced", "untouched")


@pytest.fixture
def nodes(store_daemon: StartStore, tmp_path: Path) -> list[StoreProcess]:
    """Both have all KEYS on disk."""
    nodes = start_nodes(store_daemon, tmp_path, 2, *NVME)
    with client_of(nodes[0]) as here, client_of(nodes[1]) as there:
        here.put_many([(key, b"old") for key in KEYS])
        wait_until(lambda: there.get_many(KEYS) == [b"old"] * len(KEYS))
    for node in nodes:
        wait_flushed(node, len(KEYS))
    return nodes


def _change(client: StoreClient) -> None:
    """Once the membership says that the other one is gone."""
    wait_until(lambda: _is_done(lambda: client.remove("removed")), 20.0)
    assert client.put("replaced", b"new", if_exists="replace").status is PutStatus.STORED
    assert client.get_many(KEYS) == [None, b"new", b"old"]


def _is_done(change: Callable[[], object]) -> bool:
    try:
        change()
    except StoreError as error:
        if not error.retryable:
            raise
        return False
    return True


def test_a_node_that_returns_alone_hands_out_nothing_that_was_changed_without_it(
    nodes: list[StoreProcess],
) -> None:
    stays, away = nodes
    away.kill()
    with client_of(stays) as client:
        _change(client)
        wait_flushed(stays, 2)
    stays.kill()
    away.start()
    with client_of(away) as client:
        assert client.get_many(KEYS) == [None] * 3
        stays.start()
        with client_of(stays) as other:
            assert other.get_many(KEYS) == [None, b"new", b"old"]
            wait_until(lambda: client.get_many(KEYS) == [None, b"new", b"old"])


def test_a_stopped_node_that_goes_on_forgets_what_was_changed_without_it(
    nodes: list[StoreProcess],
) -> None:
    stays, away = nodes
    with client_of(stays) as client:
        with away.stopped():
            _change(client)
        with client_of(away) as other:
            wait_until(lambda: other.get_many(KEYS) == [None, b"new", b"old"])
        assert client.get_many(KEYS) == [None, b"new", b"old"]


def test_r58_a_node_whose_lease_may_have_ended_hands_out_no_string(
    nodes: list[StoreProcess],
) -> None:
    """What was asked of it while it stood still is answered before it can do anything else."""
    stays, away = nodes
    asked = [string_entry_id(key) for key in KEYS]
    with client_of(stays) as client, local_client(away.socket) as raw:
        with away.stopped():
            _change(client)
            for question in (wire.Get, wire.Exists, wire.Lookup, wire.Locate):
                raw.send(question(asked))
        got, exist, found, located = (raw.receive().message for _ in range(4))
        assert got == wire.GetReply([-1] * len(KEYS), [0] * len(KEYS))
        assert exist == wire.ExistsReply(bytes(len(KEYS)))
        assert isinstance(found, wire.LookupReply)
        assert found.found == [None] * len(KEYS)
        assert isinstance(located, wire.LocateReply)
        assert located.slots == bytes(4 * len(KEYS))
        assert client.get_many(KEYS) == [None, b"new", b"old"]


def test_r58_who_knows_where_a_string_lies_asks_while_the_lease_may_have_ended(
    nodes: list[StoreProcess], tmp_path: Path
) -> None:
    """A client that shares memory reads without asking as long as there is a heartbeat."""
    with client_of(nodes[0]) as client:
        assert client.get_many(KEYS) == [b"old"] * len(KEYS)
        with _locked(tmp_path / "cluster" / "lock"):
            wait_until(lambda: client.get_many(KEYS) == [None] * len(KEYS), 15.0)
            assert [client.get(key) for key in KEYS] == [None] * len(KEYS)
            assert client.view(KEYS[0]) is None

        def is_back() -> bool:
            return _is_done(lambda: client.put("new", b"new")) and client.get("new") == b"new"

        wait_until(is_back, 15.0)
        hits = client.counters.located_hits
        wait_until(lambda: client.get("new") == b"new" and client.counters.located_hits > hits)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """No store gets its lease renewed."""
    with path.open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_a_node_without_which_nothing_was_changed_keeps_what_it_has(
    nodes: list[StoreProcess],
) -> None:
    stays, away = nodes
    away.restart()
    stays.kill()
    with client_of(away) as client:
        assert client.get_many(KEYS) == [b"old"] * 3


def test_a_node_whose_membership_was_wiped_cannot_prove_what_it_has(
    nodes: list[StoreProcess], tmp_path: Path
) -> None:
    for node in nodes:
        node.kill()
    (tmp_path / "cluster" / "floors").unlink()
    nodes[1].start()
    with client_of(nodes[1]) as client:
        assert client.get_many(KEYS) == [None] * 3


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_clear_reaches_a_node_that_is_away(nodes: list[StoreProcess], how: str) -> None:
    """Blocks as well as string entries, from memory as well as from disk."""
    stays, away = nodes
    with client_of(away) as client, client.kv(NAMESPACE) as kv:
        write_prompt(kv, TOKENS)
        wait_flushed(away, len(KEYS) + 6)
    if how == "killed":
        away.kill()
        _clear(stays)
        stays.kill()
        away.start()
    else:
        with away.stopped():
            _clear(stays)
    with client_of(away) as client, client.kv(NAMESPACE) as kv:
        wait_until(lambda: client.get_many(KEYS) == [None] * 3)
        assert kv.lookup(TOKENS).num_tokens == 0
        if how == "stopped":
            with client_of(stays) as other:
                assert other.get_many(KEYS) == [None] * 3
        client.put("removed", b"newer")
        assert client.get("removed") == b"newer"


def _clear(node: StoreProcess) -> None:
    with client_of(node) as client:
        client.clear()
        assert client.get_many(KEYS) == [None] * 3


def test_a_clear_reaches_every_node_that_is_there(nodes: list[StoreProcess]) -> None:
    with client_of(nodes[0]) as here, client_of(nodes[1]) as there:
        with there.kv(NAMESPACE) as kv:
            write_prompt(kv, TOKENS)
            here.clear()
            assert here.get_many(KEYS) == [None] * 3
            wait_until(lambda: there.get_many(KEYS) == [None] * 3)
            assert kv.lookup(TOKENS).num_tokens == 0
            assert here.get_many(KEYS) == [None] * 3  # none came back from there
        there.put("removed", b"newer")
        wait_until(lambda: here.get("removed") == b"newer")
    record = nodes[1].data_dir / "floors.json"
    wait_until(lambda: record.exists() and json.loads(record.read_bytes())["floors"])

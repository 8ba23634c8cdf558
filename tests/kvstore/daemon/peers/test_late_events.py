"""What this node tells of string entries at another one goes by what that has now, however long its
events are under way."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from moontide.kvstore import StoreClient
from moontide.kvstore.keys import string_entry_id
from moontide.kvstore.membership import FileMembership, StoreRecord

from ....store_process import StartStore, StoreProcess, store_processes
from ....waiting import wait_until
from ...client.helpers import client_of

KEYS = ["first", "second", "third"]
LEASE_SECONDS = 600.0


class LateEvents(ThreadingHTTPServer):
    """Tells, for ever, that a store holds KEYS."""

    daemon_threads = True

    def __init__(self, instance: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.instance = instance
        self.over = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, LateEvents)
        instance = self.server.instance
        entries = [string_entry_id(key).hex() for key in KEYS]
        self.send_response(200)
        self.end_headers()
        self._tell("snapshot", source=instance, seq=1)
        self._tell("kv", seq=1, kind="stored", instance=instance, tier="dram", entries=entries)
        self._tell("live", seq=1)
        self.server.over.wait()

    def _tell(self, name: str, **data: Any) -> None:
        self.wfile.write(f"event: {name}\ndata: {json.dumps(data)}\n\n".encode())

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@contextmanager
def late_events(instance: str) -> Iterator[LateEvents]:
    server = LateEvents(instance)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def late_nodes(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[StoreClient, StoreClient]]:
    """Clients of two nodes, each in a membership of its own that has a record of the other; in the
    first's the second's events are late."""
    folder = tmp_path_factory.mktemp("late")
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text("token-of-two-clusters")
    clusters = [folder / name for name in "ab"]
    with ExitStack() as stack:
        start = stack.enter_context(store_processes(folder))
        nodes = [start_alone(start, token, cluster) for cluster in clusters]
        events = stack.enter_context(late_events(nodes[1].instance))
        first, second = (FileMembership(cluster) for cluster in clusters)
        record = msgspec.structs.replace(record_of(second), admin_url=events.url)
        second.register(record_of(first), LEASE_SECONDS)
        first.register(record, LEASE_SECONDS)
        here, there = (stack.enter_context(client_of(node)) for node in nodes)
        wait_until(lambda: all(each.stats()["peers"]["up"] for each in (here, there)))
        yield here, there


@pytest.fixture
def clients(late_nodes: tuple[StoreClient, StoreClient]) -> tuple[StoreClient, StoreClient]:
    """Of empty nodes."""
    for client in late_nodes:
        client.clear()
    return late_nodes


def start_alone(start: StartStore, token: Path, cluster: Path) -> StoreProcess:
    """A store in a membership of its own."""
    placed = ("--node-id", f"node-{cluster.name}", "--cluster", f"file:{cluster}")
    node = start(*placed, "--token-file", str(token))
    node.token_file = token
    return node


def record_of(membership: FileMembership) -> StoreRecord:
    """Of the only store there."""
    (member,) = membership.members()
    assert isinstance(member.record, StoreRecord)
    return member.record


def test_what_another_node_lost_since_its_events_does_not_exist(
    clients: tuple[StoreClient, StoreClient],
) -> None:
    here, there = clients
    there.put_many([(key, b"value") for key in KEYS])
    wait_until(lambda: here.exists_many([*KEYS, "none"]) == [True, True, True, False])
    assert there.remove("first")
    assert not here.exists("first")
    assert here.remove("second")
    assert not here.exists("second")
    assert here.exists_many(["first", "third"]) == [False, True]
    there.clear(nodes="this")
    assert here.exists_many(KEYS) == [False, False, False]


def test_a_removal_counts_what_was_there(clients: tuple[StoreClient, StoreClient]) -> None:
    here, there = clients
    there.put_many([("first", b"1"), ("second", b"2")])
    wait_until(lambda: here.get("first") is not None)  # at both
    here.put("mine", b"0")
    assert here.remove_many(["mine", *KEYS, "first"]) == 3
    assert here.remove_many(["mine", *KEYS, "first"]) == 0

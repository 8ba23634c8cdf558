"""What requests and replies under way take of the daemon's memory is bounded for all connections
together (R61, R68)."""

from __future__ import annotations

import contextlib
import resource
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from moontide.kvstore import wire
from moontide.kvstore.daemon.buffers import INITIAL_BYTES
from moontide.kvstore.daemon.clients import MAX_CONNECTIONS_PER_CLIENT
from moontide.kvstore.daemon.session import DECODED_RATIO
from moontide.kvstore.types import PutStatus
from moontide.transfer.types import Instance

from ...store_process import StartStore, StoreProcess
from ...waiting import wait_until
from .admin import Admin
from .raw_client import RawClient, entry_id, local_client, put_message

NUM_CLIENTS = 1000
LIMIT_BYTES = 16 << 20
SLACK_BYTES = 96 << 20
"""Interpreter, allocator, and what a connection is beside its buffers."""


@pytest.fixture(scope="module")
def daemon(module_store_daemon: StartStore) -> StoreProcess:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < 2 * NUM_CLIENTS:
        resource.setrlimit(resource.RLIMIT_NOFILE, (2 * NUM_CLIENTS, hard))
    return module_store_daemon(
        "--max-clients", str(NUM_CLIENTS + 8), "--connection-memory", str(LIMIT_BYTES)
    )


@pytest.fixture(autouse=True)
def _nothing_stays(admin: Admin) -> Iterator[None]:
    yield
    wait_until(lambda: admin.stats()["connections"] == 0)
    stats = admin.stats()
    assert (stats["connection_bytes"], stats["internal_errors"]) == (0, 0)


def resident_bytes(daemon: StoreProcess) -> int:
    return int(Path(f"/proc/{daemon.pid}/statm").read_text().split()[1]) * 4096


@contextlib.contextmanager
def many_clients(daemon: StoreProcess) -> Iterator[list[RawClient]]:
    """Connections of one client a batch of MAX_CONNECTIONS_PER_CLIENT."""
    with contextlib.ExitStack() as stack:
        clients: list[RawClient] = []
        instance: Instance | None = None
        for number in range(NUM_CLIENTS):
            if number % MAX_CONNECTIONS_PER_CLIENT == 0:
                instance = None
            client = stack.enter_context(local_client(daemon.socket, instance))
            instance = client.instance
            clients.append(client)
        yield clients


def check_served(daemon: StoreProcess) -> None:
    with local_client(daemon.socket) as client:
        assert client.put("small", b"value", if_exists="replace")[0] == PutStatus.STORED
        assert client.get("small") == b"value"


def test_r68_long_requests_of_a_thousand_clients_stay_within_the_bound(
    daemon: StoreProcess, admin: Admin
) -> None:
    """Each sends the head of the longest request there is, and 1 MiB of it."""
    before = resident_bytes(daemon)
    head = wire.HEADER.pack(b"MT", 1, 0, 1, wire.MAX_BODY_BYTES, 0)
    with many_clients(daemon) as clients:
        for client in clients:
            client.socket.sendall(head + bytes(1 << 20))
        assert admin.stats()["connection_bytes"] <= LIMIT_BYTES
        grown = resident_bytes(daemon) - before
        assert grown < LIMIT_BYTES + NUM_CLIENTS * INITIAL_BYTES + SLACK_BYTES
        check_served(daemon)
        refused = clients[-1]
        refused.socket.sendall(bytes(wire.MAX_BODY_BYTES - (1 << 20)))
        answer = refused.receive().message
        assert (answer.code, "retry later" in answer.message) == ("busy", True)
        assert refused.call(wire.Exists([entry_id("small")])).message.found == b"\x01"


def test_r68_replies_that_nobody_reads_stay_within_the_bound(
    daemon: StoreProcess, admin: Admin
) -> None:
    """Short requests with long replies."""
    before = resident_bytes(daemon)
    flood = wire.encode_frame(wire.GetStats(), 1) * 4000
    with many_clients(daemon) as clients:
        flooding = clients[:100]
        sent = dict.fromkeys(flooding, 0)
        deadline = time.monotonic() + 25
        while admin.stats()["connection_bytes"] < LIMIT_BYTES:
            assert time.monotonic() < deadline
            for client in flooding:
                client.socket.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    sent[client] += client.socket.send(flood[sent[client] :])
        check_served(daemon)
        longest_reply = 64 << 10
        bound = LIMIT_BYTES + len(clients) * longest_reply
        assert admin.stats()["connection_bytes"] <= bound
        assert resident_bytes(daemon) - before < bound + SLACK_BYTES


def test_r68_requests_whose_payload_does_not_come_stay_within_the_bound(
    daemon: StoreProcess, admin: Admin
) -> None:
    keys = [(f"{number:x}", b"x") for number in range(wire.MAX_KEYS)]
    frame = wire.encode_frame(put_message(keys), 1, len(keys))
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(local_client(daemon.socket)) for _ in range(40)]
        for client in clients:
            client.socket.sendall(frame)
        with local_client(daemon.socket) as other:
            assert other.call(wire.Exists([entry_id("none")])).message.found == b"\0"
        assert admin.stats()["connection_bytes"] <= LIMIT_BYTES
        for client in clients:
            client.socket.sendall(b"x" * len(keys))
        answers = [client.receive().message for client in clients]
    refused = [answer.code for answer in answers if isinstance(answer, wire.Failure)]
    assert set(refused) == {"busy"}
    assert 0 < len(refused) < len(clients)


def test_r61_connections_of_one_client_are_limited(daemon: StoreProcess) -> None:
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(local_client(daemon.socket))
        for _ in range(MAX_CONNECTIONS_PER_CLIENT - 1):
            stack.enter_context(local_client(daemon.socket, first.instance))
        one_more = stack.enter_context(RawClient(f"unix:{daemon.socket}"))
        one_more.instance = first.instance
        answer = one_more.hello().message
        assert (answer.code, "close some" in answer.message) == ("busy", True)
        check_served(daemon)


@pytest.mark.parametrize("length", [1, 16, 1000])
def test_a_request_takes_no_more_than_is_counted_for_it(length: int) -> None:
    entries = [
        bytes(length - 1) + bytes([n % 256]) for n in range(min(wire.MAX_KEYS, 5_000_000 // length))
    ]
    body = wire.encode_frame(wire.Exists(entries), 1)[wire.HEADER.size :]
    tracemalloc.start()
    try:
        message = wire.decode_request(memoryview(body))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(message, msgspec.Struct)
    assert taken <= DECODED_RATIO * len(body)

"""R52: a node that answers but whose pool cannot be read: it is not asked, until it can be."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from moontide.kvstore import BlockStore, StoreClient
from moontide.kvstore.membership import FileMembership, StoreRecord

from ....relaying import SocketRelay
from ....store_process import StartStore, StoreProcess
from ....waiting import wait_until
from ...client.helpers import NAMESPACE, check_prompt, client_of, write_prompt

TOKENS = range(160)  # ten blocks
LEASE_SECONDS = 120.0


class Way(SocketRelay):
    """Passes on what comes."""

    def pass_on(self, client: socket.socket, server: socket.socket) -> None:
        while data := client.recv(1 << 16):
            server.sendall(data)

    pass_back = pass_on


def record_of(cluster: Path) -> StoreRecord:
    [member] = FileMembership(cluster).members()
    assert isinstance(member.record, StoreRecord)
    return member.record


@pytest.fixture
def pool() -> Iterator[socket.socket]:
    """Where node-b is told that node-a's pool is: nobody listens there, until it does."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock


@pytest.fixture
def pair(store_daemon: StartStore, tmp_path: Path, pool: socket.socket) -> list[StoreProcess]:
    """Each has a membership of its own; in that of node-b stands node-a, with another pool."""
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text("cluster-token-of-these-two")
    nodes = []
    for name in ("node-a", "node-b"):
        where = ("--node-id", name, "--cluster", f"file:{tmp_path / name}", "--dram", "16MiB")
        node = store_daemon(*where, "--token-file", str(token), "--segment", "4MiB")
        node.token_file = token
        nodes.append(node)
    elsewhere = "{}:{}".format(*pool.getsockname())
    record = msgspec.structs.replace(record_of(tmp_path / "node-a"), transfer_address=elsewhere)
    FileMembership(tmp_path / "node-b").register(record, LEASE_SECONDS)
    return nodes


def lookups_at(client: StoreClient) -> int:
    stats = client.stats()["requests"]
    assert isinstance(stats, dict)
    return sum(count for name, count in stats.items() if name == "LookupBlocks")


def peers_of(client: StoreClient) -> Callable[[str], list[str]]:
    return lambda state: client.stats()["peers"][state]  # type: ignore[index, no-any-return]  # JSON


def test_r52_a_peer_whose_pool_cannot_be_read_is_left_alone_until_it_can_be(
    pair: list[StoreProcess], pool: socket.socket, tmp_path: Path
) -> None:
    with (
        client_of(pair[0]) as theirs,
        client_of(pair[1]) as ours,
        theirs.kv(NAMESPACE) as writer,
        ours.kv(NAMESPACE) as reader,
    ):
        peers = peers_of(ours)
        write_prompt(writer, TOKENS)
        wait_until(lambda: peers("up") == ["node-a"])
        wait_until(lambda: ask(reader) and peers("unreadable") == ["node-a"])
        wait_until(lambda: ours.stats()["fills"] == 0)
        before = lookups_at(theirs)
        for _ in range(5):
            assert reader.lookup(TOKENS).num_tokens == 0
        assert lookups_at(theirs) == before  # a lookup costs nothing there, and no wait here
        host, _, port = record_of(tmp_path / "node-a").transfer_address.rpartition(":")
        pool.listen()
        way = Way(pool, lambda: socket.create_connection((host, int(port))))
        try:
            wait_until(lambda: peers("unreadable") == [])
            wait_until(lambda: reader.lookup(TOKENS).num_tokens == len(TOKENS))
            assert check_prompt(reader, TOKENS) == len(TOKENS)
        finally:
            way.close()


def ask(reader: BlockStore) -> bool:
    """Has a fill tried, if the peer is asked."""
    reader.lookup(TOKENS)
    return True

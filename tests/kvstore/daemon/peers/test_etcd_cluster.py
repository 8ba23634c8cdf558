"""Two stores that find each other through a real etcd: it is wiped, restarted, and changed behind
their backs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from etcd3gw import Etcd3Client

from moontide.kvstore import StoreClient, StoreError, StoreUnavailable
from moontide.kvstore.membership.etcd import PREFIX, EtcdMembership

from ....etcd_process import EtcdProcess, etcd_process
from ....store_process import StartStore, StoreProcess
from ....waiting import wait_until
from ...client.helpers import client_of


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdProcess]:
    with etcd_process(tmp_path) as process:
        yield process


@pytest.fixture
def nodes(etcd: EtcdProcess, store_daemon: StartStore, tmp_path: Path) -> list[StoreProcess]:
    token = tmp_path / "cluster-token"
    token.touch(mode=0o600)
    token.write_text("cluster-token-of-the-tests")
    nodes = []
    for name in ("node-a", "node-b"):
        placed = ("--node-id", name, "--token-file", str(token))
        nodes.append(store_daemon(*placed, "--cluster", f"etcd://{etcd.endpoint}"))
        nodes[-1].token_file = token
    return nodes


@contextlib.contextmanager
def clients_of(nodes: list[StoreProcess]) -> Iterator[list[StoreClient]]:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(client_of(node)) for node in nodes]
        for client in clients:
            wait_until(lambda client=client: len(client.stats()["peers"]["up"]) == 1)
        yield clients


def _num_members(etcd: EtcdProcess) -> int:
    """0 where a busy machine has it answer too late."""
    try:
        return len(EtcdMembership([etcd.endpoint]).members())
    except StoreUnavailable:
        return 0


def _client(etcd: EtcdProcess) -> Etcd3Client:
    host, port = etcd.endpoint.split(":")
    return Etcd3Client(host, int(port), api_path="/v3/")


def test_r29_stores_register_again_after_a_wipe_and_find_each_other(
    etcd: EtcdProcess, nodes: list[StoreProcess]
) -> None:
    with clients_of(nodes) as (here, there):
        here.put("before", b"1")
        wait_until(lambda: there.get("before") == b"1")
        _client(etcd).delete_prefix(f"{PREFIX}/")
        wait_until(lambda: _num_members(etcd) == 2)
        wait_until(lambda: all(len(c.stats()["peers"]["up"]) == 1 for c in (here, there)))
        here.put("after", b"2")
        wait_until(lambda: there.get("after") == b"2")  # locations are told anew
        assert there.put("before", b"3", if_exists="replace").status.name == "STORED"
        wait_until(lambda: here.get("before") == b"3")


def test_r56_what_changed_without_an_event_is_seen(
    etcd: EtcdProcess, nodes: list[StoreProcess]
) -> None:
    """Nobody watches: a record that appears or goes behind everybody's back is found by reading the
    list again."""
    key, client = f"{PREFIX}/members/store/node-b", _client(etcd)
    with clients_of(nodes) as (here, _):
        [(value, _)] = client.get(key, metadata=True)
        forged = value.replace(b'"node-b"', b'"node-x"').replace(b"node-b/", b"node-x/")
        client.put(key.replace("node-b", "node-x"), forged)
        wait_until(lambda: "node-x" in here.stats()["peers"]["known"])
        client.delete(key.replace("node-b", "node-x"))
        wait_until(lambda: here.stats()["peers"]["known"] == ["node-b"])


def test_stores_go_on_while_etcd_is_away(etcd: EtcdProcess, nodes: list[StoreProcess]) -> None:
    with clients_of(nodes) as (here, there):
        etcd.kill()
        here.put("meanwhile", b"1")
        wait_until(lambda: there.get("meanwhile") == b"1")
        etcd.start()
        wait_until(lambda: _num_members(etcd) == 2)
        wait_until(lambda: _replaces(there, "meanwhile", b"2"))
        wait_until(lambda: here.get("meanwhile") == b"2")


def _replaces(client: StoreClient, key: str, value: bytes) -> bool:
    try:
        return client.put(key, value, if_exists="replace").status.name == "STORED"
    except StoreError as error:
        if not error.retryable:
            raise
        return False

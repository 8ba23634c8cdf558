"""String entries across nodes: found wherever they lie, and never in an older value than the last
one acknowledged."""

from __future__ import annotations

import itertools
import random
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from moontide.kvstore import PutStatus, StoreClient, StoreError, StoreUnavailable, connect, wire
from moontide.kvstore.daemon.peers.changes import home_of
from moontide.kvstore.keys import string_entry_id
from moontide.kvstore.types import Located
from moontide.transfer import checksum

from ....store_process import StartStore, StoreProcess, start_nodes
from ....waiting import wait_until
from ...client.helpers import client_of
from ..raw_client import local_client
from ..warm import uses_of
from .conftest import is_idle

KEYS: Iterator[str] = (f"key {number}" for number in itertools.count())


@pytest.fixture
def clients(nodes: list[StoreProcess]) -> Iterator[tuple[StoreClient, StoreClient]]:
    with client_of(nodes[0]) as here, client_of(nodes[1]) as there:
        wait_until(lambda: _see_each_other(here, there))
        yield here, there


def _see_each_other(*clients: StoreClient) -> bool:
    return all(len(client.stats()["peers"]["up"]) == 1 for client in clients)


@pytest.mark.parametrize("size", [0, 1, 1000, 3_000_000])
def test_a_value_that_another_node_holds_is_found(
    clients: tuple[StoreClient, StoreClient], size: int
) -> None:
    (here, there), key = clients, next(KEYS)
    value = random.Random(size).randbytes(size)
    here.put(key, value)
    wait_until(lambda: there.exists(key))
    assert there.size(key) == size
    assert there.get(key) == value
    view = there.view(key)
    assert view is not None
    with view:
        assert bytes(view.data) == value


def test_a_value_without_a_checksum_gets_one_on_its_way(
    clients: tuple[StoreClient, StoreClient], nodes: list[StoreProcess]
) -> None:
    there, key = clients[1], next(KEYS)
    value = random.Random(3).randbytes(100_000)
    with connect(f"unix:{nodes[0].socket}", checksums="off") as here:
        here.put(key, value)
        wait_until(lambda: there.exists(key))
        assert there.get(key) == value
    with local_client(nodes[1].socket) as raw:
        (place,) = raw.call(wire.Lookup([string_entry_id(key)])).message.found
    assert Located(*place).checksum == checksum(value)


def test_after_a_replace_is_acknowledged_nobody_hands_out_the_old_value(
    clients: tuple[StoreClient, StoreClient],
) -> None:
    key = next(KEYS)
    clients[0].put(key, b"0")
    wait_until(lambda: clients[1].get(key) == b"0")  # both hold it now
    for number in range(1, 20):
        value = str(number).encode()
        writer, reader = clients if number % 2 else clients[::-1]
        assert writer.put(key, value, if_exists="replace").status is PutStatus.STORED
        assert writer.get(key) == value
        assert reader.get(key) in (None, value)
        wait_until(lambda value=value, reader=reader: reader.get(key) == value)


def test_after_a_removal_is_acknowledged_nobody_has_it(
    clients: tuple[StoreClient, StoreClient],
) -> None:
    for remover in (0, 1):
        key = next(KEYS)
        clients[0].put(key, b"x" * 100_000)
        wait_until(lambda key=key: clients[1].get(key) is not None)
        assert clients[remover].remove(key)
        assert [client.get(key) for client in clients] == [None, None]
        assert not clients[remover].remove(key)


def test_a_copy_ends_when_what_it_is_a_copy_of_does(
    clients: tuple[StoreClient, StoreClient],
) -> None:
    (here, there), key, lifetime_s = clients, next(KEYS), 0.8
    put_at = time.monotonic()
    here.put(key, b"v", ttl_s=lifetime_s)
    wait_until(lambda: there.get(key) == b"v")
    assert here.get(key) == there.get(key) == b"v"
    wait_until(lambda: there.get(key) is None and here.get(key) is None)
    assert time.monotonic() - put_at >= lifetime_s


def test_readers_at_once_share_one_copy(
    nodes: list[StoreProcess], clients: tuple[StoreClient, StoreClient]
) -> None:
    key, value = next(KEYS), b"v" * 3_000_000
    clients[0].put(key, value)
    wait_until(lambda: clients[1].exists(key))
    start = threading.Barrier(4)

    def read() -> bytes | None:
        with client_of(nodes[1]) as client:
            start.wait()
            return client.get(key)

    with ThreadPoolExecutor(4) as readers:
        values = [each.result() for each in [readers.submit(read) for _ in range(4)]]
    assert values == [value] * 4


def test_r29_a_wiped_membership_brings_no_old_value_back(
    store_daemon: StartStore, tmp_path: Path
) -> None:
    """The other store is not registered for a while, and serves its clients all the same."""
    nodes = start_nodes(store_daemon, tmp_path, 2)
    with client_of(nodes[0]) as here, client_of(nodes[1]) as there:
        wait_until(lambda: _see_each_other(here, there))
        here.put("k", b"old")
        wait_until(lambda: there.get("k") == b"old")
        shutil.rmtree(tmp_path / "cluster")
        wait_until((tmp_path / "cluster").exists)  # the first has registered again
        here.put("k", b"new", if_exists="replace")
        while len(_registered(tmp_path)) < 2:
            assert there.get("k") in (None, b"new")
        assert there.get("k") in (None, b"new")
        assert _see_each_other(here, there)


def _registered(parent: Path) -> list[Path]:
    return list((parent / "cluster").glob("*.member"))


def test_replicas_lie_on_as_many_nodes(
    nodes: list[StoreProcess], clients: tuple[StoreClient, StoreClient]
) -> None:
    key, value = next(KEYS), b"v" * 200_000
    before = clients[1].stats()["tiers"]["dram"]["entries"]
    assert clients[0].put(key, value, replicas=2).status is PutStatus.STORED
    assert clients[1].stats()["tiers"]["dram"]["entries"] == before + 1
    with pytest.raises(StoreUnavailable, match="2 stores"):
        clients[0].put(next(KEYS), value, replicas=3)


def test_to_take_a_replica_is_no_reading_there(clients: tuple[StoreClient, StoreClient]) -> None:
    (here, there), keys = clients, [next(KEYS) for _ in range(20)]
    uses = uses_of(there)
    for key in keys:
        here.put(key, b"value", replicas=2)
    assert uses_of(there) == uses
    assert there.get_many(keys) == [b"value"] * len(keys)


def test_of_changes_at_once_each_store_ends_with_the_same_value(
    clients: tuple[StoreClient, StoreClient],
) -> None:
    """Two writers at two nodes, one key: whatever order they get, both nodes agree on it."""
    key = next(KEYS)
    acknowledged: list[bytes] = []

    def write(client: StoreClient, name: str) -> None:
        for number in range(15):
            value = f"{name} {number}".encode()
            try:
                if client.put(key, value, if_exists="replace").status is PutStatus.STORED:
                    acknowledged.append(value)
            except StoreError as error:
                assert error.retryable  # noqa: PT017 - every refusal says that it may be repeated

    threads = [
        threading.Thread(target=write, args=(client, name))
        for client, name in zip(clients, "ab", strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(acknowledged) > 5
    wait_until(lambda: clients[0].get(key) == clients[1].get(key) is not None)
    assert clients[0].get(key) in acknowledged[-2:]


def test_a_store_that_cannot_be_reached_fails_the_change_by_name(
    store_daemon: StartStore, tmp_path: Path
) -> None:
    nodes = start_nodes(store_daemon, tmp_path, 2)
    with client_of(nodes[0]) as here, client_of(nodes[1]) as there:
        wait_until(lambda: _see_each_other(here, there))
        here.put("k", b"old")
        nodes[1].kill()
        wait_until(lambda: here.stats()["peers"]["up"] == [])
        for change in (
            lambda: here.remove("k"),
            lambda: here.put("k", b"new", if_exists="replace"),
        ):
            with pytest.raises(StoreUnavailable, match="node-b") as failed:
                change()
            assert failed.value.retryable
        assert is_idle(here.stats())  # a put that failed holds nothing
        assert here.put("other", b"local").status is PutStatus.STORED


def test_a_node_that_comes_or_goes_moves_only_its_own_keys() -> None:
    entries = [string_entry_id(f"{number}") for number in range(300)]
    three = {entry: home_of(entry, ["a", "b", "c"]) for entry in entries}
    two = {entry: home_of(entry, ["c", "a"]) for entry in entries}
    assert all(two[entry] == home for entry, home in three.items() if home != "b")
    assert set(three.values()) == {"a", "b", "c"}

"""String entries of one cluster: put at one node, read, replaced and removed at the other."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from moontide.kvstore import PutStatus, StoreClient, StoreTimeout

from ...store_process import StartStore, StoreProcess, start_nodes
from ...waiting import wait_until, within
from .conftest import FLAGS
from .helpers import client_of


def test_string_entries_of_one_node_are_read_at_the_other(
    nodes: list[StoreProcess], reading_client: StoreClient
) -> None:
    small, large = b"small", bytes(range(256)) * 1024
    with client_of(nodes[0]) as other:
        other.remove_many(["small", "large"])
        other.put_many([("small", small), ("large", large)])
        wait_until(lambda: reading_client.exists_many(["small", "large"]) == [True, True])
        assert reading_client.get_many(["small", "large", "absent"]) == [small, large, None]
        assert reading_client.size("large") == len(large)
        buffer = bytearray(len(large))
        assert reading_client.get_into("large", buffer) == len(large)
        assert buffer == large
        view = reading_client.view("large")
        assert view is not None
        with view:
            assert view.data == large
        assert reading_client.remove("large")
        wait_until(lambda: not other.exists("large"))
        assert other.get("large") is None
        assert other.remove("small")
        wait_until(lambda: not reading_client.exists("small"))


def test_a_replaced_entry_is_replaced_everywhere(
    nodes: list[StoreProcess], reading_client: StoreClient
) -> None:
    with client_of(nodes[0]) as other:
        other.put("key", b"old", if_exists="replace")
        wait_until(lambda: reading_client.get("key") == b"old")
        assert reading_client.put("key", b"new", if_exists="replace").status is PutStatus.STORED
        wait_until(lambda: other.get("key") == b"new")
        assert reading_client.get("key") == b"new"
        assert other.put("key", b"kept").status is PutStatus.EXISTS
        reading_client.remove("key")
        wait_until(lambda: not other.exists("key"))


def test_batches_of_several_threads_are_replaced_everywhere(
    nodes: list[StoreProcess], reading_client: StoreClient
) -> None:
    """Each waits for the other node's word. They fill runs to the last page, and share them."""
    keys = [[f"{thread}/{number}" for number in range(3)] for thread in range(4)]
    sizes = (400_100, 400_100, 100)

    def replace(thread: int) -> list[bytes]:
        for version in range(10):
            values = [bytes([version, thread]) * size for size in sizes]
            items = list(zip(keys[thread], values, strict=True))
            results = reading_client.put_many(items, if_exists="replace")
            assert [result.status for result in results] == [PutStatus.STORED] * len(sizes)
        return values

    with client_of(nodes[0]) as other, ThreadPoolExecutor(len(keys)) as pool:
        other.put_many([(key, b"old") for few in keys for key in few])
        for few, values in zip(keys, pool.map(replace, range(len(keys))), strict=True):
            wait_until(lambda few=few, values=values: other.get_many(few) == values)
            reading_client.remove_many(few)


def test_a_second_copy_outlives_the_first(store_daemon: StartStore, tmp_path: Path) -> None:
    one, two = start_nodes(store_daemon, tmp_path, 2, *FLAGS)
    small, large = b"small", bytes(range(256)) * 1024
    with client_of(one) as first, client_of(two) as second:
        wait_until(lambda: first.stats()["peers"]["up"] == ["node-b"])
        results = first.put_many([("small", small), ("large", large)], replicas=2)
        assert [result.status for result in results] == [PutStatus.STORED] * 2
        one.kill()
        assert second.get_many(["small", "large"]) == [small, large]


def test_r21_a_stopped_peer_costs_a_get_its_deadline_and_no_more(
    nodes: list[StoreProcess], reading_client: StoreClient
) -> None:
    reading_client.put("here", b"here")
    with nodes[0].stopped():
        with within(2 * 0.55 + 0.3):
            for key, value in (("here", b"here"), ("nowhere", None)):
                with contextlib.suppress(StoreTimeout):
                    assert reading_client.get(key, timeout_s=0.5) == value
        assert reading_client.get("here") == b"here"
    reading_client.remove("here")

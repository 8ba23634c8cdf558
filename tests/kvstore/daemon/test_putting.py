"""Values that come with their message: where they go, and what a put that is cut short leaves."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from moontide.kvstore import wire
from moontide.kvstore.types import PutStatus

from ...store_process import StartStore, StoreProcess
from ...waiting import wait_until
from .admin import Admin
from .raw_client import RawClient, entry_id, put_message, remote_client

POOL_FLAGS = ("--dram", "16MiB", "--segment", "4MiB")
RUN_BYTES = 512 << 10
"""Of a store with such segments."""
STORED = (PutStatus.STORED, "")
Items = list[tuple[str, bytes]]


@pytest.fixture(scope="module")
def daemon(module_store_daemon: StartStore) -> StoreProcess:
    return module_store_daemon(*POOL_FLAGS)


@pytest.fixture(autouse=True)
def _nothing_stays(admin: Admin) -> Iterator[None]:
    yield
    wait_until(lambda: admin.stats()["connections"] == 0)
    admin.check_at_rest()
    admin.post("/v1/clear")


@pytest.fixture
def client(daemon: StoreProcess) -> Iterator[RawClient]:
    with remote_client(daemon.listen, daemon.token) as opened:
        yield opened


def items_of(sizes: list[int], name: str = "k") -> Items:
    rng = random.Random(len(sizes))
    return [(f"{name}{index}", rng.randbytes(size)) for index, size in enumerate(sizes)]


def put_all(client: RawClient, items: Items, **options: object) -> list[tuple[int, str]]:
    results: list[tuple[int, str]] = client.call(
        put_message(items, **options), b"".join(value for _, value in items)
    ).message.results
    return results


def used_bytes(admin: Admin) -> int:
    used: int = admin.stats()["tiers"]["dram"]["used_bytes"]
    return used


@pytest.mark.parametrize(
    "sizes",
    [
        [4096] * 32,
        [4096, 1, 0, 4095, 5000, 64, 0],
        [1000] * 500,
        [0, 0],
        [RUN_BYTES // 2, RUN_BYTES // 2],
        [RUN_BYTES // 2, RUN_BYTES],
    ],
)
def test_a_batch_comes_back_as_it_went_in(client: RawClient, sizes: list[int]) -> None:
    items = items_of(sizes)
    assert put_all(client, items) == [STORED] * len(items)
    assert [client.get(key) for key, _ in items] == [value for _, value in items]


def test_what_a_batch_needs_is_what_its_entries_take(client: RawClient, admin: Admin) -> None:
    before = used_bytes(admin)
    put_all(client, items_of([100] * 3))
    assert used_bytes(admin) - before == 3 * 128
    stats = admin.stats()
    assert (stats["runs"], stats["in_flight"], stats["tiers"]["dram"]["reserved_bytes"]) == (0,) * 3


def test_a_key_that_a_batch_names_twice_keeps_its_first_value(client: RawClient) -> None:
    items = [("a", b"first"), ("b", b"b"), ("a", b"second")]
    assert put_all(client, items) == [STORED, STORED, (PutStatus.EXISTS, "")]
    assert (client.get("a"), client.get("b")) == (b"first", b"b")
    assert put_all(client, items, if_exists="replace") == [STORED] * 3
    assert client.get("a") == b"second"


def test_who_was_first_while_a_batch_was_sent_wins(
    client: RawClient, daemon: StoreProcess, admin: Admin
) -> None:
    items = items_of([4096] * 4)
    payload = b"".join(value for _, value in items)
    client.send_part(put_message(items), payload, len(payload) - 1)
    with remote_client(daemon.listen, daemon.token) as other:
        wait_until(lambda: admin.stats()["runs"] == 1)
        assert other.put("k1", b"first") == STORED
    client.socket.sendall(payload[-1:])
    assert client.receive().message.results == [STORED, (PutStatus.EXISTS, ""), STORED, STORED]
    assert client.get("k1") == b"first"


@pytest.mark.parametrize("size", [4096, 1 << 20])
def test_a_put_that_is_cut_short_leaves_nothing(
    daemon: StoreProcess, admin: Admin, size: int
) -> None:
    before = used_bytes(admin)
    items = items_of([size] * 3)
    payload = b"".join(value for _, value in items)
    with remote_client(daemon.listen, daemon.token) as client:
        client.send_part(put_message(items), payload, len(payload) - 1)
        wait_until(lambda: used_bytes(admin) - before == 3 * size)
        with remote_client(daemon.listen, daemon.token) as other:
            assert [other.get(key) for key, _ in items] == [None] * 3
    wait_until(lambda: used_bytes(admin) == before)
    assert admin.stats()["tiers"]["dram"]["quarantined_bytes"] == 0


def test_what_is_there_already_makes_nothing_go(client: RawClient, admin: Admin) -> None:
    items = items_of([100 << 10] * 4)
    assert put_all(client, items) == [STORED] * 4
    for index in range(200):  # a full pool
        client.put(f"other{index}", bytes(100 << 10))
        client.get(items[0][0])
    put_all(client, items)
    evictions = admin.stats()["tiers"]["dram"]["evictions"]
    assert put_all(client, items) == [(PutStatus.EXISTS, "")] * 4
    assert admin.stats()["tiers"]["dram"]["evictions"] == evictions


def test_a_batch_beyond_a_clients_share_is_taken_as_far_as_it_goes(client: RawClient) -> None:
    """A run would be refused as a whole."""
    held = client.call(wire.Reserve([entry_id("held")], [4 << 20])).message.results[0]
    while client.call(wire.Reserve([entry_id("more")], [100 << 10])).message.results[0][0] == 0:
        pass
    results = put_all(client, items_of([50 << 10] * 6))
    statuses = {PutStatus(status) for status, _ in results}
    assert statuses == {PutStatus.STORED, PutStatus.FULL}
    assert all(reason for status, reason in results if status == PutStatus.FULL)
    assert client.call(wire.Abort([held[1]], [held[2]])).message == wire.Ok()

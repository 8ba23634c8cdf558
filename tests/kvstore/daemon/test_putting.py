"""Values that come with their message: where they go, and what a put that is cut short leaves."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import xxhash

from moontide.kvstore import wire
from moontide.kvstore.daemon.waits import MAX_WAITS
from moontide.kvstore.types import PutStatus

from ...store_process import StartStore, StoreProcess, start_nodes
from ...waiting import wait_until
from .admin import Admin
from .raw_client import RawClient, entry_id, put_message, remote_client
from .test_protocol import KEYS, SHARD, open_namespace

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


def test_a_put_that_there_is_no_room_to_wait_for_leaves_nothing(
    store_daemon: StartStore, tmp_path: Path
) -> None:
    """A replace waits for other nodes: a connection has only so many waits."""
    (node,) = start_nodes(store_daemon, tmp_path, 1, *POOL_FLAGS)
    with remote_client(node.listen, node.token) as client:
        absent = wire.LookupBlocks(
            open_namespace(client), KEYS[0], [SHARD.pack()], pending=True, wait_s=60.0
        )
        for _ in range(MAX_WAITS):
            client.send(absent)
        for size in (4096, RUN_BYTES):
            items = items_of([size] * 2)
            payload = b"".join(value for _, value in items)
            refused = client.call(put_message(items, if_exists="replace"), payload).message
            assert (type(refused), refused.code) == (wire.Failure, "busy")
            dram = Admin(node.admin, node.token).stats()["tiers"]["dram"]
            assert (dram["used_bytes"], dram["reserved_bytes"]) == (0, 0)


# -- checksums that follow the values ---------------------------------------------------


def streamed(items: Items) -> tuple[wire.Put, bytes]:
    values = [value for _, value in items]
    sums = struct.pack(f"<{len(items)}Q", *map(xxhash.xxh3_64_intdigest, values))
    message = wire.Put([entry_id(key) for key, _ in items], [*map(len, values)], [])
    return message, b"".join(values) + sums


@pytest.mark.parametrize("sizes", [[100], [4096] * 8, [0, 5], [3 << 20], [1 << 20] * 3])
def test_checksums_may_follow_the_values(client: RawClient, sizes: list[int]) -> None:
    items = items_of(sizes)
    assert client.call(*streamed(items)).message.results == [STORED] * len(items)
    assert [client.get(key) for key, _ in items] == [value for _, value in items]


def test_checksums_that_follow_refused_values_are_dropped_with_them(client: RawClient) -> None:
    items = items_of([1000, 2000])
    client.put("k0", b"there")
    assert client.call(*streamed(items)).message.results == [(PutStatus.EXISTS, ""), STORED]
    assert (client.get("k0"), client.get("k1")) == (b"there", items[1][1])


@pytest.mark.parametrize("size", [4096, 1 << 20])
@pytest.mark.parametrize("missing", [1, 16, 30])
def test_a_stream_that_is_cut_short_leaves_nothing(
    daemon: StoreProcess, admin: Admin, size: int, missing: int
) -> None:
    """Whether its last value is not whole, or its checksums."""
    items = items_of([size] * 2)
    message, payload = streamed(items)
    with remote_client(daemon.listen, daemon.token) as client:
        client.send_part(message, payload, len(payload) - missing)
        wait_until(lambda: used_bytes(admin) == 2 * size)
        with remote_client(daemon.listen, daemon.token) as other:
            assert [other.get(key) for key, _ in items] == [None] * 2
    wait_until(lambda: used_bytes(admin) == 0)


def test_a_wrong_checksum_behind_the_values_is_found_out(client: RawClient) -> None:
    message, payload = streamed(items_of([4096] * 2))
    wrong = payload[:-1] + bytes([payload[-1] ^ 1])
    assert client.call(message, wrong).message.results == [STORED] * 2
    answer = client.call(wire.Get(message.entries))
    sums = [xxhash.xxh3_64_intdigest(answer.payload[at : at + 4096]) for at in (0, 4096)]
    told = answer.message.checksums
    assert (sums[0] == told[0], sums[1] == told[1]) == (True, False)


@pytest.mark.parametrize(
    ("sizes", "payload_bytes"), [([8], 8), ([8], 15), ([8], 17), ([0], 0), ([], 8), ([8, 8], 24)]
)
def test_lengths_without_room_for_the_checksums_are_refused(
    client: RawClient, sizes: list[int], payload_bytes: int
) -> None:
    entries = [entry_id(f"k{index}") for index in range(len(sizes))]
    reply = client.call(wire.Put(entries, sizes, []), bytes(payload_bytes)).message
    assert isinstance(reply, wire.Failure)
    assert reply.code == "invalid_request"
    assert client.put("fine", b"value") == STORED


def test_neighbours_come_in_whatever_order_they_are_asked_for(client: RawClient) -> None:
    items = items_of([4096, 4096, 0, 4096, 100, 64, 64, 4096, 4096])
    put_all(client, items)
    client.put("apart", b"apart")
    values = {**dict(items), "apart": b"apart"}
    rng = random.Random(1)
    for _ in range(50):
        asked = rng.choices([*values, "absent"], k=12)
        answer = client.call(wire.Get([entry_id(key) for key in asked]))
        assert answer.payload == b"".join(values.get(key, b"") for key in asked)
        assert answer.message.sizes == [len(values[key]) if key in values else -1 for key in asked]

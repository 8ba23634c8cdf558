"""Values put over TCP: in one message, large ones summed while they are sent."""

from __future__ import annotations

import itertools
import random
import socket
from collections.abc import Iterator, Sequence

import pytest

from moontide.kvstore import PutStatus, StoreClient, StoreUnavailable, connect
from moontide.kvstore.client.inline_writing import LEAST_PIECE_BYTES, LEAST_STREAMED_BYTES

from ...store_process import StoreProcess
from ...waiting import wait_until
from ..daemon.admin import Admin
from .helpers import SECONDS, address, client_of
from .relay import Relay

PIECES_BYTES = 2 * LEAST_PIECE_BYTES
SIZES = [
    [LEAST_STREAMED_BYTES - 1],
    [LEAST_STREAMED_BYTES],
    [PIECES_BYTES - 1],
    [PIECES_BYTES],
    [4 << 20],
    [1000, PIECES_BYTES, 0, 3_000_001, 5],
    [64 << 10] * 32,
    [4096] * 500,
    [1 << 20] * 10,
]


@pytest.fixture(autouse=True)
def _at_rest_afterwards(daemon: StoreProcess) -> Iterator[None]:
    yield
    admin = Admin(daemon.admin, daemon.token)
    wait_until(lambda: admin.stats()["connections"] == 0)
    admin.post("/v1/clear")
    admin.check_at_rest()


@pytest.fixture
def remote(daemon: StoreProcess) -> Iterator[StoreClient]:
    with client_of(daemon, "tcp") as client:
        yield client


def values_of(sizes: Sequence[int]) -> dict[str, bytes]:
    rng = random.Random(len(sizes))
    return {f"k{index}": rng.randbytes(size) for index, size in enumerate(sizes)}


@pytest.mark.parametrize("sizes", SIZES)
def test_values_come_back_as_they_went_in(remote: StoreClient, sizes: Sequence[int]) -> None:
    values = values_of(sizes)
    kinds = itertools.cycle([memoryview, bytes, bytearray])
    items = [(key, kind(value)) for kind, (key, value) in zip(kinds, values.items(), strict=False)]
    assert {result.status for result in remote.put_many(items)} == {PutStatus.STORED}
    assert remote.get_many(list(values)) == list(values.values())


def test_without_checksums_nothing_follows_the_values(daemon: StoreProcess) -> None:
    values = values_of([PIECES_BYTES] * 3)
    with connect(
        address(daemon, "tcp"), token=daemon.token, timeout_s=SECONDS, checksums="off"
    ) as client:
        client.put_many(list(values.items()))
        assert client.get_many(list(values)) == list(values.values())


def test_one_result_a_value_whatever_was_there(remote: StoreClient) -> None:
    values = values_of([PIECES_BYTES] * 3)
    remote.put("k1", b"first")
    statuses = [result.status for result in remote.put_many(list(values.items()))]
    assert statuses == [PutStatus.STORED, PutStatus.EXISTS, PutStatus.STORED]
    assert remote.get("k1") == b"first"
    replaced = remote.put_many(list(values.items()), if_exists="replace")
    assert {result.status for result in replaced} == {PutStatus.STORED}
    assert remote.get_many(list(values)) == list(values.values())


class CuttingRelay(Relay):
    """Hangs up on a client that has sent `most_bytes`."""

    most_bytes = 1 << 30

    def pass_on(self, client: socket.socket, server: socket.socket) -> None:
        passed = 0
        while left := min(1 << 16, self.most_bytes - passed):
            if not (data := client.recv(left)):
                return
            server.sendall(data)
            passed += len(data)


@pytest.fixture
def relay(daemon: StoreProcess) -> Iterator[CuttingRelay]:
    with CuttingRelay(daemon.listen) as relay:
        yield relay


@pytest.mark.parametrize("size", [LEAST_STREAMED_BYTES, PIECES_BYTES, 2 << 20])
@pytest.mark.parametrize("count", [1, 2])
def test_of_a_put_whose_connection_breaks_nothing_is_seen_and_nothing_stays(
    daemon: StoreProcess, relay: CuttingRelay, size: int, count: int
) -> None:
    values = values_of([size] * count)
    relay.most_bytes = size - 1000
    with connect(relay.address, token=daemon.token, timeout_s=SECONDS) as client:
        with pytest.raises(StoreUnavailable):
            client.put_many(list(values.items()))
        relay.most_bytes = 1 << 30
        assert client.get_many(list(values)) == [None] * count
        admin = Admin(daemon.admin, daemon.token)
        wait_until(lambda: admin.stats()["tiers"]["dram"]["used_bytes"] == 0)
        assert client.put_many(list(values.items()))[0].status is PutStatus.STORED
        assert client.get_many(list(values)) == list(values.values())

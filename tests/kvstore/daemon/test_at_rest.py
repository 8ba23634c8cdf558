"""A store daemon under mixed work and failures: at rest its accounts agree and nothing is lost
(R1, R13, R14, R19)."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
from typing import Any

import pytest

from moontide.kvstore import wire
from moontide.kvstore.types import PutStatus, ReserveStatus
from moontide.transfer.types import Instance

from ...store_process import StartStore, StoreProcess
from ...waiting import wait_until, within
from .admin import Admin
from .raw_client import (
    RawClient,
    entry_id,
    local_client,
    put_message,
    remote_client,
)

NUM_KEYS = 200
LARGEST = 4 << 20


@pytest.fixture
def daemon(store_daemon: StartStore) -> StoreProcess:
    return store_daemon()


def make_value(key: str, size: int) -> bytes:
    """Bytes that tell their key, size and, every 256 of them, their offset."""
    parts = [f"{key}:{size}:{offset};".ljust(256, "-") for offset in range(0, size, 256)]
    return "".join(parts)[:size].encode()


class Workload:
    """Random requests of several clients, some of which die in the middle of one."""

    def __init__(self, daemon: StoreProcess, seed: int) -> None:
        self.rng = random.Random(seed)
        self.daemon = daemon
        self.instance = Instance("test", os.getpid(), secrets.token_bytes(16))
        self.clients = [self.connect() for _ in range(4)]

    def connect(self) -> RawClient:
        if self.rng.random() < 0.7:
            return local_client(self.daemon.socket, self.instance)
        return remote_client(self.daemon.listen or "", self.daemon.token)

    def run(self, num_steps: int) -> None:
        steps = [self.put, self.get, self.get, self.remove, self.reserve, self.pin, self.die]
        weights = [10, 10, 10, 3, 3, 3, 1]
        for _ in range(num_steps):
            index = self.rng.randrange(len(self.clients))
            step = self.rng.choices(steps, weights)[0]
            step(index)

    def close(self) -> None:
        """Hangs up; a last connection says that none of this process's writes is running."""
        for client in self.clients:
            client.close()
        local_client(self.daemon.socket, self.instance, quiesced=True).close()

    def put(self, index: int) -> None:
        client = self.clients[index]
        key, size = self.key(), self.rng.choice([1, 100, 5000, 70_000, 1_000_000])
        value = make_value(key, size)
        ttl_s = self.rng.choice([None, None, 0.05])
        if_exists: Any = self.rng.choice(["keep", "replace"])
        status, _ = client.put(key, value, ttl_s=ttl_s, if_exists=if_exists)
        assert status in (PutStatus.STORED, PutStatus.EXISTS, PutStatus.FULL)

    def get(self, index: int) -> None:
        key = self.key()
        value = self.clients[index].get(key)
        assert value is None or value == make_value(key, len(value))

    def remove(self, index: int) -> None:
        self.clients[index].call(wire.Remove([entry_id(self.key()), entry_id(self.key())]))

    def reserve(self, index: int) -> None:
        """Reserved and then left, aborted, or given up with the connection."""
        client = self.clients[index]
        answer = client.call(wire.Reserve([entry_id(self.key())], [self.rng.choice([10, 90_000])]))
        status, slot, generation = answer.message.results[0][:3]
        if status == ReserveStatus.RESERVED and self.rng.random() < 0.5:
            client.call(wire.Abort([slot], [generation]))

    def pin(self, index: int) -> None:
        client = self.clients[index]
        pin_s = self.rng.choice([0, 0.05, 0.05])
        answer = client.call(wire.Lookup([entry_id(self.key())], pin_s=pin_s)).message
        if isinstance(answer, wire.LookupReply) and answer.ticket and self.rng.random() < 0.7:
            client.call(wire.Unpin(answer.ticket))

    def die(self, index: int) -> None:
        """Hangs up in the middle of a request, or with the answer unread."""
        client = self.clients[index]
        value = make_value("x", 50_000)
        frame = wire.encode_frame(put_message([(self.key(), value)]), 1, len(value)) + value
        client.socket.sendall(frame[: self.rng.randrange(len(frame))])
        client.close()
        self.clients[index] = self.connect()

    def key(self) -> str:
        return f"key-{self.rng.randrange(NUM_KEYS)}"


@pytest.mark.parametrize("seed", range(2))
def test_r13_at_rest_used_bytes_are_the_live_entries(
    daemon: StoreProcess, admin: Admin, seed: int
) -> None:
    with contextlib.closing(Workload(daemon, seed)) as workload:
        workload.run(2000)
    wait_until(lambda: admin.stats()["connections"] == 0)
    wait_until(lambda: admin.stats()["tickets"] == 0)
    wait_until(lambda: admin.stats()["in_flight"] == 0)
    admin.check_at_rest()
    admin.post("/v1/clear")
    assert admin.stats()["tiers"]["dram"]["used_bytes"] == 0
    admin.check_at_rest()
    assert admin.stats()["internal_errors"] == 0


def test_r14_after_overload_the_largest_entry_fits_within_5_s(
    daemon: StoreProcess, admin: Admin
) -> None:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(local_client(daemon.socket)) for _ in range(3)]
        results = set()
        for index in range(60):  # 60 × 3.9 MB of live reservations into 64 MiB
            message = wire.Reserve([entry_id(f"r{index}")], [LARGEST - 100_000])
            answer = clients[index % 3].call(message)
            results.add(answer.message.results[0][0])
        assert results == {ReserveStatus.RESERVED, ReserveStatus.FULL}
        with local_client(daemon.socket) as other:
            with within(1.0):
                status, reason = other.put("a", bytes(LARGEST))
            assert status == PutStatus.FULL
            assert "retry" in reason
        instances = [client.instance for client in clients]
    for instance in instances:
        with local_client(daemon.socket, instance, quiesced=True) as client:
            for index in range(34):
                client.put(f"small-{index}", bytes(100_000 + index))
    with local_client(daemon.socket) as client:
        wait_until(lambda: client.put("largest", bytes(LARGEST))[0] == PutStatus.STORED, 5.0)
    admin.check_at_rest()


def test_r19_an_overfull_batch_gives_one_retryable_result_a_key(
    daemon: StoreProcess, admin: Admin
) -> None:
    refused_before = admin.stats()["refused_puts"]
    with local_client(daemon.socket) as client:
        items = [(f"k{index}", make_value(f"k{index}", LARGEST)) for index in range(20)]
        answer = client.call(put_message(items), b"".join(value for _, value in items))
        statuses = [status for status, _ in answer.message.results]
        assert len(statuses) == 20
        assert set(statuses) == {PutStatus.STORED, PutStatus.FULL}
        for (key, value), status in zip(items, statuses, strict=True):
            assert client.get(key) == (value if status == PutStatus.STORED else None)
    refused = admin.stats()["refused_puts"] - refused_before
    assert refused == statuses.count(PutStatus.FULL)


def test_a_client_killed_mid_put_leaves_no_key_and_no_bytes(
    daemon: StoreProcess, admin: Admin
) -> None:
    value = bytes(2 << 20)
    used = admin.stats()["tiers"]["dram"]["used_bytes"]
    for connect in (
        lambda: local_client(daemon.socket),
        lambda: remote_client(daemon.listen or "", daemon.token),
    ):
        client = connect()
        frame = wire.encode_frame(put_message([("a", value)]), 1, len(value))
        client.socket.sendall(frame + value[: 1 << 20])
        wait_until(lambda: admin.stats()["in_flight"] == 1)
        client.close()
        wait_until(lambda: admin.stats()["in_flight"] == 0)
        admin.check_at_rest()
        assert admin.stats()["tiers"]["dram"]["used_bytes"] == used
        with local_client(daemon.socket) as other:
            assert other.get("a") is None

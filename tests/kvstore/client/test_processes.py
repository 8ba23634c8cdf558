"""Clients as processes of their own: killed, scribbling, beside each other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from moontide.kvstore import PutStatus, StoreClient, wire

from ...store_process import StartStore, StoreProcess, shared_memory_names
from ...waiting import wait_until
from .helpers import NAMESPACE, Scribbler, address, client_of, fork, own_memory

CHILD = Path(__file__).with_name("child.py")
ENDED_SECONDS = 10.0


class Child:
    """A client process that holds all a client can hold."""

    def __init__(self, daemon: StoreProcess) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(CHILD), address(daemon)], stdout=subprocess.PIPE, text=True
        )

    def wait_ready(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready True\n"

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=ENDED_SECONDS)


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def audit(daemon: StoreProcess) -> dict[str, object]:
    request = urllib.request.Request(
        f"{daemon.admin}/v1/audit",
        data=b"{}",
        headers={"Authorization": f"Bearer {daemon.token}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as response:
        report: dict[str, object] = json.load(response)
        return report


def is_idle(client: StoreClient) -> bool:
    stats = client.stats()
    counts = ("pins", "tickets", "in_flight", "quarantined", "hbm_blocks")
    return not any(stats[name] for name in counts) and stats["client_processes"] == 1


def kill_cycles(daemon: StoreProcess, cycles: int) -> None:
    """Rounds of two clients killed at once, one of them wherever it happens to be."""
    with client_of(daemon) as watcher:
        watcher.stats()

        def cycle() -> None:
            steady, early = Child(daemon), Child(daemon)
            steady.wait_ready()
            early.kill()
            steady.kill()
            wait_until(lambda: is_idle(watcher), ENDED_SECONDS)

        for _ in range(3):  # caches and pools of the daemon itself fill
            cycle()
        files, memory = open_files(daemon.pid), own_memory(daemon.pid)
        for _ in range(cycles):
            cycle()
        assert open_files(daemon.pid) == files
        assert own_memory(daemon.pid) - memory < max(4 << 20, cycles << 15)
        assert audit(daemon)["differences"] == []
        assert watcher.get("shared") == bytes(200_000)
        watcher.clear()
        assert watcher.stats()["tiers"]["dram"]["used_bytes"] == 0
        assert watcher.stats()["segments_granted"] == 0


def test_r18_what_killed_clients_held_is_freed(store_daemon: StartStore) -> None:
    kill_cycles(store_daemon("--dram", "32MiB"), 5)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_r18_what_killed_clients_held_is_freed_100_times(store_daemon: StartStore) -> None:
    kill_cycles(store_daemon("--dram", "32MiB"), 100)


def test_r18_a_client_killed_in_the_middle_of_a_put(store_daemon: StartStore) -> None:
    """The key is absent, and the space is back."""
    daemon = store_daemon("--dram", "8MiB", "--segment", "4MiB")
    pid = fork()
    if not pid:
        with Scribbler(daemon) as dying:
            reply = dying.request(wire.Reserve([b"shalf"], [4 << 20]))
            assert isinstance(reply, wire.Reserved)
            dying.map(reply.results[0][3])
            dying.memory[: 1 << 20] = b"x" * (1 << 20)
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    with client_of(daemon) as client:
        wait_until(lambda: is_idle(client), ENDED_SECONDS)
        assert client.get("half") is None
        assert client.stats()["tiers"]["dram"]["used_bytes"] == 0
        assert client.put("half", bytes(4 << 20)).status is PutStatus.STORED
        assert client.get("half") == bytes(4 << 20)


def test_r67_an_engine_that_dies_leaves_the_others_and_dev_shm_alone(
    store_daemon: StartStore,
) -> None:
    before = shared_memory_names()
    daemon = store_daemon("--dram", "32MiB")
    first, second = Child(daemon), Child(daemon)
    for engine in (first, second):
        engine.wait_ready()
    with client_of(daemon) as client:
        value = os.urandom(1 << 20)
        client.put("key", value)
        view = client.view("key")
        assert view is not None
        for pid in (daemon.pid, first.process.pid, second.process.pid, os.getpid()):
            named = [
                line
                for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
                if "/dev/shm/" in line
            ]
            assert not named or pid == os.getpid()
        first.kill()
        wait_until(lambda: client.stats()["client_processes"] == 2, ENDED_SECONDS)
        assert second.process.poll() is None
        assert daemon.is_running()
        with view:
            assert view.data == value
        assert client.get("shared") == bytes(200_000)
        assert client.kv(NAMESPACE).lookup(range(64)).num_tokens == 0
        second.kill()
        wait_until(lambda: is_idle(client), ENDED_SECONDS)
    assert shared_memory_names() <= before


def test_a_scribbling_client_harms_only_its_own_entries(store_daemon: StartStore) -> None:
    daemon = store_daemon("--dram", "32MiB")
    values = {f"good{number}": os.urandom(100_000) for number in range(20)}
    small = {f"small{number}": os.urandom(1000) for number in range(20)}
    with client_of(daemon) as client, client_of(daemon, "tcp") as remote:
        client.put_many([*values.items(), *small.items()])
        with Scribbler(daemon) as scribbler:
            for number in range(3):
                scribbler.put(f"sbad{number}".encode(), os.urandom(100_000))
            remote.put("through the socket", bytes(100_000))
            scribbler.memory[:] = b"\xa5" * len(scribbler.memory)
            assert client.get_many([*values, *small]) == [*values.values(), *small.values()]
            assert remote.get("through the socket") == bytes(100_000)
            assert client.counters.corrupt == 0
            # damage is detected by each way of reading, and the entry is dropped
            assert client.get("bad0") is None
            assert client.get("bad0") is None
            with client.view("bad1") or pytest.fail("a miss") as view:
                assert not view.verify()
            with client.view("good1") or pytest.fail("a miss") as view:
                assert view.verify()
            assert remote.get("bad2") is None
            assert client.counters.corrupt == 2
            assert remote.counters.corrupt == 1
            wait_until(lambda: client.stats()["tiers"]["dram"]["corrupt"] >= 2)
            assert not client.exists("bad0")
            # nobody else's segment can be had for writing
            for segment in range(client.stats()["segments"]):
                if segment != scribbler.segment:
                    refused = scribbler.request(wire.MapSegment(segment, True))
                    assert isinstance(refused, wire.Failure)
        assert audit(daemon)["differences"] == []


def test_r14_an_idle_writer_gives_its_segments_back(store_daemon: StartStore) -> None:
    """The first client fills all it can get and then only sleeps: the second still finds room."""
    daemon = store_daemon("--dram", "16MiB", "--segment", "1MiB")
    with client_of(daemon) as first, client_of(daemon) as second:
        for number in range(40):
            first.put(f"first{number}", bytes(900_000))
        assert first.stats()["segments_granted"] > 8
        keys = [f"second{number}" for number in range(8)]

        def all_there() -> bool:
            for key in keys:
                second.put(key, bytes(900_000))
            return all(second.exists_many(keys))

        wait_until(all_there)
        value = os.urandom(900_000)
        assert first.put("again", value).status is PutStatus.STORED
        assert first.get("again") == value

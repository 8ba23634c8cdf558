"""Eight clients that ask one store for all it has, one of which stops and one of which dies; and
hosts that send what no client would. The others are served, and memory stays bounded."""

from __future__ import annotations

import random
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from itertools import chain
from pathlib import Path

import pytest

from moontide.kvstore import wire
from moontide.transfer import wire as transfer_wire

from ..waiting import Lateness, wait_until
from .cluster import DATA_PORT, TRANSFER_PORT, Cluster
from .reading import SOON, Reader, content, read_all

pytestmark = [pytest.mark.net, pytest.mark.timeout(600)]

NUM_CLIENTS = 8
HEALTHZ_SECONDS = 1.0
P99_SECONDS, P99_RATIO = 1.0, 4.0
"""Where the machine is so slow that a turn of all clients takes a good part of a second, nobody
waits for so many turns."""
STORM = 600  # connections: more than the data port serves at once
NEIGHBOURS_DESCRIPTORS = 16  # of connections that other stores open meanwhile
MORE_BYTES = 96 << 20
"""What the store's own memory may grow by: far less than its --connection-memory."""


class Loader:
    """One process of loader.py on a host."""

    def __init__(self, cluster: Cluster, host: str, name: str, folder: Path) -> None:
        self._out = folder / f"{name}.txt"
        self._told = folder / f"{name}.err"
        store = cluster.stores["a"]
        script = (sys.executable, "-m", "tests.net.loader", f"tcp://{store.listen}")
        command = cluster.network.command(host, *script, str(store.token_file), name)
        with self._out.open("wb") as out, self._told.open("wb") as told:
            self.process = subprocess.Popen(command, stdout=out, stderr=told)

    def calls(self) -> list[tuple[float, float]]:
        """Begin and end of each so far."""
        lines = self._out.read_text().rpartition("\n")[0].splitlines()
        return [(float(begin), float(end)) for begin, end in map(str.split, lines)]

    def seconds(self, machine: Lateness) -> list[float]:
        """Of each of its calls so far, in order of length; without what the machine was late."""
        return sorted(end - begin - machine.between(begin, end) for begin, end in self.calls())

    def has_made(self, count: int) -> bool:
        return len(self.calls()) >= count

    def told(self) -> str:
        return f"{self._out.name}: {len(self.calls())} calls; {self._told.read_text()[-2000:]}"

    def end(self) -> None:
        self.process.kill()
        self.process.wait(SOON)


def await_calls(loaders: list[Loader], count: int) -> None:
    """So many more of each."""
    for loader, wanted in [(each, len(each.calls()) + count) for each in loaders]:
        wait_until(partial(loader.has_made, wanted), SOON, loader.told)


def check_healthy(cluster: Cluster, machine: Lateness) -> None:
    began = time.monotonic()
    assert cluster.is_healthy("a")
    ended = time.monotonic()
    assert ended - began - machine.between(began, ended) < HEALTHZ_SECONDS


def test_r20_eight_clients_overload_a_store_of_which_one_stops_and_one_dies(
    cluster: Cluster, tmp_path: Path
) -> None:
    store = cluster.stores["a"]
    before = store.resident_bytes()
    with ExitStack() as stack:
        machine = stack.enter_context(Lateness())
        loaders = [
            Loader(cluster, "bc"[number % 2], f"client-{number}", tmp_path)
            for number in range(NUM_CLIENTS)
        ]
        for loader in loaders:
            stack.callback(loader.end)
        stopping, dying, *others = loaders
        await_calls(loaders, 20)
        stopping.process.send_signal(signal.SIGSTOP)
        await_calls(others, 40)
        check_healthy(cluster, machine)
        dying.process.kill()
        await_calls(others, 40)
        check_healthy(cluster, machine)
        stopping.process.send_signal(signal.SIGCONT)
        await_calls([stopping, *others], 20)
        assert store.resident_bytes() - before < MORE_BYTES
        taken = {loader: loader.seconds(machine) for loader in others}
        turn = statistics.median(chain.from_iterable(taken.values()))
        for loader, seconds in taken.items():
            p99 = seconds[len(seconds) * 99 // 100]
            assert p99 < max(P99_SECONDS, P99_RATIO * turn), (p99, turn, loader.told())
    cluster.check_at_rest("a")


# -- what no client would send ------------------------------------------------------------


def bytes_of_any_kind(rng: random.Random) -> bytes:
    return rng.randbytes(rng.randrange(1, 4096))


def huge_lengths(rng: random.Random) -> bytes:
    most = (1 << 64) - 1
    return rng.choice(
        [
            wire.HEADER.pack(b"MT", 1, 0, 1, 0xFFFFFFFF, most),
            transfer_wire.HEADER.pack(b"MX", 1, transfer_wire.Kind.HELLO, 0, 1, most, most),
            transfer_wire.HEADER.pack(b"MX", 1, transfer_wire.Kind.WRITE, 1, 1, 0, 1 << 40),
        ]
    )


def half_a_frame(rng: random.Random) -> bytes:
    whole = rng.choice(
        [
            wire.encode_frame(wire.Exists([b"k" * 32] * 50), 1),
            transfer_wire.encode_header(
                transfer_wire.Header(transfer_wire.Kind.HELLO, length=2000)
            ),
        ]
    )
    return whole[: len(whole) // 2]


HOSTILE: list[Callable[[random.Random], bytes]] = [bytes_of_any_kind, huge_lengths, half_a_frame]


class Storm:
    """To one port: STORM connections that each say something hostile, and as many that say nothing;
    all stay open at this end."""

    def __init__(self, address: str, port: int) -> None:
        rng = random.Random(port)
        self._sockets: list[socket.socket] = []
        for number in range(2 * STORM):
            sock = socket.create_connection((address, port), SOON)
            self._sockets.append(sock)
            with suppress(ConnectionError):
                if number < STORM:
                    sock.sendall(HOSTILE[number % len(HOSTILE)](rng))

    def dribble(self) -> None:
        """One more byte of each."""
        for sock in self._sockets:
            with suppress(OSError):
                sock.send(b"\0", socket.MSG_DONTWAIT)

    def await_ends(self) -> None:
        """The store hangs up on each, by itself."""
        for sock in self._sockets:
            with suppress(ConnectionError):
                while sock.recv(1 << 16):
                    pass

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()


@pytest.fixture
def storms(cluster: Cluster) -> Iterator[list[Storm]]:
    """From host c at both ports of host a, while everybody there is served as before."""
    address = cluster.network.address("a")
    ports = (DATA_PORT, TRANSFER_PORT)
    made = cluster.network.run_on("c", lambda: [Storm(address, port) for port in ports])
    yield made
    for storm in made:
        storm.close()


@pytest.mark.parametrize("cluster", ["plain", "tls"], indirect=True)
def test_r26_storms_of_hostile_connections_cost_others_nothing(
    cluster: Cluster, request: pytest.FixtureRequest
) -> None:
    """A client of another host reads on, new ones are let in, and the host's own store reads what
    only the stormed one has."""
    store = cluster.stores["a"]
    keys = [f"key-{number}" for number in range(40)]
    with ExitStack() as stack:
        writer = stack.enter_context(store.client())
        for key in keys:
            writer.put(key, content(key))

        def read_from_b() -> Reader:
            return Reader(stack.enter_context(cluster.dial("a", source="b")), keys)

        neighbour = stack.enter_context(cluster.stores["b"].client())
        wait_until(lambda: all(neighbour.exists_many(keys)), SOON)
        reader = cluster.network.run_on("b", read_from_b)
        stack.callback(reader.stop)
        reader.await_reads(20)
        before, descriptors = store.resident_bytes(), store.num_descriptors()
        storms: list[Storm] = request.getfixturevalue("storms")
        reader.await_reads(50)
        for number, key in enumerate(keys):
            for storm in storms:
                storm.dribble()
            read_all(neighbour, [key])
            if number % 10 == 0:
                with cluster.dial("a", source="b") as newcomer:
                    assert newcomer.exists(key)
        for storm in storms:
            storm.await_ends()
        reader.await_reads(20)
        assert reader.faults == []
        assert store.is_running()
        assert store.resident_bytes() - before < MORE_BYTES
        wait_until(lambda: store.num_descriptors() <= descriptors + NEIGHBOURS_DESCRIPTORS, SOON)
    cluster.check_at_rest("a")

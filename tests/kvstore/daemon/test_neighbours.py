"""R20: one client of eight stops, or dies, at each step of a write; the others do not notice."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

import pytest

from moontide.kvstore import PutStatus, connect, wire

from ...store_process import StartStore, StoreProcess
from ...waiting import Lateness, wait_until, within
from .admin import Admin
from .raw_client import RawClient, entry_id, local_client, put_message

Step = Literal["run", "written", "reserved", "payload", "reading"]
STEPS: tuple[Step, ...] = ("run", "written", "reserved", "payload", "reading")
NUM_OTHERS = 7
CALLS = 40
VALUE = bytes(range(256)) * 256  # 64 KiB


@pytest.fixture(scope="module")
def daemon(module_store_daemon: StartStore) -> StoreProcess:
    return module_store_daemon("--stall-seconds", "30")


def stop_at(step: Step, socket: Path, told: Connection) -> None:
    """Runs in a process of its own: gets as far as `step` and says so; the rest is up to others."""
    client = local_client(socket, newest_version=2)
    if step in ("run", "written"):
        place = client.call(wire.ReserveRun(1 << 20)).message.results[0]
        answer = client.call(wire.MapSegment(place[3], writable=True))
        memory = mmap.mmap(answer.descriptors[0], answer.message.num_bytes)
        if step == "written":
            memory[place[4] : place[4] + len(VALUE)] = VALUE
    elif step == "reserved":
        client.call(wire.Reserve([entry_id("stopped")], [1 << 20]))
    elif step == "payload":
        message = put_message([("stopped", VALUE)])
        client.socket.sendall(wire.encode_frame(message, 9, len(VALUE)) + VALUE[:1000])
    else:
        _ask_without_reading(client)
    told.send(os.getpid())
    signal.pause()


def _ask_without_reading(client: RawClient) -> None:
    client.put("read", VALUE)
    client.socket.setblocking(False)
    frame = wire.encode_frame(wire.Get([entry_id("read")]), 9)
    for _ in range(200):
        client.socket.send(frame)


@pytest.fixture(params=STEPS)
def stuck(request: pytest.FixtureRequest, daemon: StoreProcess) -> Iterator[int]:
    """Pid of a client that does nothing more."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=stop_at, args=(request.param, daemon.socket, theirs))
    process.start()
    theirs.close()  # so that its end is noticed
    try:
        with ours:
            assert ours.poll(60)
            pid = int(ours.recv())
        yield pid
    finally:
        process.kill()
        process.join(20)
        process.close()


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_r20_others_do_not_notice_one_that_stops_or_dies_in_the_middle(
    daemon: StoreProcess, admin: Admin, stuck: int, number: signal.Signals
) -> None:
    os.kill(stuck, number)
    moments: list[tuple[float, float]] = []
    with ExitStack() as stack, Lateness() as machine:
        clients = [
            stack.enter_context(connect(f"unix:{daemon.socket}", timeout_s=5.0))
            for _ in range(NUM_OTHERS)
        ]
        for call in range(CALLS):
            for index, client in enumerate(clients):
                key = f"{index}/{call % 8}"
                start = time.monotonic()
                assert client.put(key, VALUE, if_exists="replace").status is PutStatus.STORED
                assert client.get(key) == VALUE
                moments.append((start, time.monotonic()))
            if call % 10 == 0:
                with within(1.0):
                    assert admin.get("/healthz") == {"status": "ok"}
    latencies = sorted(end - start - machine.between(start, end) for start, end in moments)
    assert latencies[int(0.99 * len(latencies))] < 1.0
    os.kill(stuck, signal.SIGKILL)
    wait_until(lambda: admin.stats()["connections"] == 0)
    wait_until(lambda: admin.stats()["quarantined"] == 0)
    admin.check_at_rest()

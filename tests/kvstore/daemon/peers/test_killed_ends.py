"""Either end of a hand-off killed in the middle of its layer stream: what the other end held for it
is free, and nothing is left at either node."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from multiprocessing.connection import wait
from typing import Any

import pytest

from moontide.kvstore import BlockStore, JobStatus, StoreClient

from ....store_process import StoreProcess
from ....waiting import wait_until
from ...client.helpers import (
    NAMESPACE,
    SECONDS,
    buffers_for,
    client_of,
    fork,
    layers_of,
    own_memory,
    result_of,
)
from .conftest import is_idle

PROMPTS: Iterator[range] = (range(start, start + 1600) for start in itertools.count(0, 10_000))
ORDERS = ("receiver", "writer")
"""Who is killed first."""
PIN_SECONDS = 1.5
FREE_SECONDS = 10.0
TRANSFER_STREAMS = 4
"""Connections between the two nodes that come with work and end when idle for long."""


Rest = Callable[[], object]


class End:
    """A process that does its half of a hand-off up to the middle, says so, and then the rest."""

    def __init__(self, node: StoreProcess, half: Callable[[BlockStore], Rest]) -> None:
        ready, told = os.pipe()
        self.pid = fork()
        if not self.pid:
            try:
                with client_of(node) as client, client.kv(NAMESPACE) as kv:
                    rest = half(kv)
                    os.write(told, b"r")
                    rest()
                    signal.pause()
            finally:
                os._exit(1)
        os.close(told)
        self._ready = os.fdopen(ready, "rb")

    def wait_ready(self) -> None:
        with closing(self._ready):
            assert self._ready.read(1) == b"r"

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def write_half(kv: BlockStore, tokens: range) -> Rest:
    """Two layers of four; the store stays open."""
    content = layers_of(kv, kv.keys(tokens))
    handle = kv.begin_store(tokens, deadline_s=60.0)
    for layer in range(2):
        job = kv.submit_store(handle, layer, content[layer], deadline_s=SECONDS)
        assert result_of(kv, job).status is JobStatus.DONE
    return signal.pause


def receive_half(kv: BlockStore, tokens: range, source: StoreProcess) -> Rest:
    """The first layer has come, all others are waited for: until they came or failed, with a pin
    that goes on as long as the process lives."""
    job = kv.submit_fetch(
        tokens,
        source=source.instance,
        request_block=None,
        pin_s=PIN_SECONDS,
        deadline_s=60.0,
    )
    hit = result_of(kv, job).hit
    assert hit is not None
    buffers = buffers_for(kv, [0], len(hit.blocks))
    load = kv.submit_load(hit.ticket, [0], buffers, deadline_s=SECONDS)
    assert result_of(kv, load).status is JobStatus.DONE
    ticket, later = hit.ticket, buffers_for(kv, range(1, 4), len(hit.blocks))
    kv.submit_load(ticket, range(1, 4), later, deadline_s=60.0)

    def wait_for_it() -> None:
        while not kv.poll():
            kv.renew(ticket, ttl_s=PIN_SECONDS)
            wait([kv.fileno()], PIN_SECONDS / 3)
        kv.release(ticket)

    return wait_for_it


def cycle(nodes: list[StoreProcess], clients: list[StoreClient], first: str) -> None:
    tokens = next(PROMPTS)
    ends = {
        "receiver": End(nodes[1], lambda kv: receive_half(kv, tokens, nodes[0])),
        "writer": End(nodes[0], lambda kv: write_half(kv, tokens)),
    }
    for end in ends.values():
        end.wait_ready()
    source, target = clients
    ends.pop(first).kill()
    if first == "receiver":  # the writer goes on, and nobody holds what it writes
        wait_until(lambda: is_idle(target.stats()), FREE_SECONDS, target.stats)
        wait_until(lambda: holds_no_pins(source.stats()), FREE_SECONDS, source.stats)
        assert source.stats()["in_flight"] > 0
    else:  # nobody writes what the receiver waits for
        wait_until(lambda: not source.stats()["in_flight"], FREE_SECONDS, source.stats)
        wait_until(lambda: is_idle(target.stats()), FREE_SECONDS, target.stats)
    [other] = ends.values()
    other.kill()
    for client in clients:
        wait_until(lambda client=client: is_idle(client.stats()), FREE_SECONDS, client.stats)


def holds_no_pins(stats: dict[str, Any]) -> bool:
    return not stats["pins"] and not stats["tickets"]


def kill_cycles(nodes: list[StoreProcess], count: int) -> None:
    with client_of(nodes[0]) as here, client_of(nodes[1]) as there:
        for client in (here, there):
            client.clear()
        for first in ORDERS:
            cycle(nodes, [here, there], first)
        before = [(open_files(node), own_memory(node.pid)) for node in nodes]
        for number in range(count):
            cycle(nodes, [here, there], ORDERS[number % 2])
        for node, client, (files, memory) in zip(nodes, (here, there), before, strict=True):
            most = files + TRANSFER_STREAMS
            wait_until(lambda node=node, most=most: open_files(node) <= most, FREE_SECONDS)
            assert own_memory(node.pid) - memory < max(4 << 20, count << 15)
            stats = client.stats()
            assert stats["tiers"]["dram"]["used_bytes"] == 0
            assert stats["peers"]["in_flight_bytes"] == 0


def open_files(node: StoreProcess) -> int:
    return len(os.listdir(f"/proc/{node.pid}/fd"))


def test_r17_r18_either_end_of_a_hand_off_killed_frees_the_other(
    nodes: list[StoreProcess],
) -> None:
    kill_cycles(nodes, 2)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_r18_ends_of_hand_offs_killed_100_times(nodes: list[StoreProcess]) -> None:
    kill_cycles(nodes, 100)

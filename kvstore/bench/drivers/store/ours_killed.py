"""Moontide, one of whose three nodes is killed: a holder of what is read, or the one that the
client talks to."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from ....client import StoreClient, connect
from ....errors import StoreError, StoreUnavailable
from ....types import PutStatus
from ...store.daemon import Daemon, running_daemon
from ..contract import Failed
from ..serving import Driver, serve
from .kills import NODES, REPLICAS, key_of, num_keys, value_of, watch_a_kill

CALL_SECONDS = 0.5
"""Deadline of each call."""
SET_UP_SECONDS = 60.0
_POLL_SECONDS = 0.05
_BATCH = 64


class Caller:
    """Calls of one user thread, with a client of each node. When the one it talks to cannot be
    reached, its next call goes to the next."""

    def __init__(self, clients: Sequence[StoreClient]) -> None:
        self._clients = clients
        self._current = 0

    def has_done(self, act: Callable[[StoreClient], bool]) -> bool:
        try:
            return act(self._clients[self._current])
        except StoreUnavailable:
            self._current = (self._current + 1) % len(self._clients)
        except StoreError:
            pass
        return False


class Moontide:
    """A client talks to the first node; the keys that are read lie on all others. Killed is the
    first, or (`holder`) of the others the one that most has been read from."""

    def __init__(self, nodes: Sequence[Daemon], token: str, victim: str) -> None:
        self._own, *self._holders = nodes
        self._victim = victim
        self._open = contextlib.ExitStack()
        addresses = [self._own.address, *(node.remote_address for node in self._holders)]
        self._reader, self._writer = (
            Caller([self._open.enter_context(connect(each, token=token)) for each in addresses])
            for _ in range(2)
        )
        self._hits = {node: _hits(node) for node in self._holders}

    def read(self, number: int) -> bool:
        key = key_of(number)
        value = value_of(key)
        return self._reader.has_done(
            lambda client: client.get(key, timeout_s=CALL_SECONDS) == value
        )

    def put(self, number: int) -> bool:
        key = f"new {number}"
        value = value_of(key)

        def put(client: StoreClient) -> bool:
            result = client.put(key, value, replicas=REPLICAS, timeout_s=CALL_SECONDS)
            return result.status is PutStatus.STORED

        return self._writer.has_done(put)

    def kill(self) -> None:
        victim = self._own
        if self._victim == "holder":
            victim = max(self._holders, key=lambda node: _hits(node) - self._hits[node])
        os.kill(victim.pid, signal.SIGKILL)

    def close(self) -> None:
        self._open.close()


def begin(request: Mapping[str, Any]) -> Driver:
    directory = Path(request["directory"])
    token = directory / "token"
    with contextlib.ExitStack() as stack:
        nodes = [
            stack.enter_context(_running_node(directory, number, token, request["dram_bytes"]))
            for number in range(NODES)
        ]
        _spread(nodes, num_keys(request["watch_seconds"]))
        cluster = Moontide(nodes, token.read_text().strip(), request["victim"])
        stack.callback(cluster.close)
        started = stack.pop_all()

    def killed(asked: Mapping[str, Any]) -> dict[str, Any]:
        return {**watch_a_kill(cluster, asked), "deadline_seconds": CALL_SECONDS}

    return Driver(metadata.version("moontide"), {"killed": killed}, close=started.close)


def _running_node(
    directory: Path, number: int, token: Path, dram_bytes: int
) -> contextlib.AbstractContextManager[Daemon]:
    home = directory / f"node-{number}"
    home.mkdir()
    flags = ["--node-id", home.name, "--cluster", f"file:{directory / 'cluster'}"]
    flags += ["--dram", str(dram_bytes), "--token-file", str(token)]
    return running_daemon(home, *flags)


def _spread(nodes: Sequence[Daemon], count: int) -> None:
    """Every key onto every node but the first. Raises Failed, StoreError."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect(node.address)) for node in nodes]
        _await(lambda: all(map(_knows_all, clients)), "all peers of each")
        keys = [key_of(number) for number in range(count)]
        for first in range(0, count, _BATCH):
            batch = [(key, value_of(key)) for key in keys[first : first + _BATCH]]
            results = clients[0].put_many(batch, replicas=NODES, timeout_s=SET_UP_SECONDS)
            if any(result.status is not PutStatus.STORED for result in results):
                raise Failed(f"a put of {NODES} replicas: {results}")
        clients[0].clear(nodes="this")
        _await(lambda: all(clients[0].exists_many(keys)), "the replicas")


def _hits(node: Daemon) -> int:
    with connect(node.address) as client:
        hits: int = client.stats()["tiers"]["dram"]["hits"]
        return hits


def _knows_all(client: StoreClient) -> bool:
    return len(client.stats()["peers"]["up"]) == NODES - 1


def _await(is_there: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SET_UP_SECONDS
    while not is_there():
        if time.monotonic() > deadline:
            raise Failed(f"{what} were not there within {SET_UP_SECONDS:g} s")
        time.sleep(_POLL_SECONDS)


if __name__ == "__main__":
    serve(begin)

"""Mooncake, of whose three segments' processes one is killed. Its master and its clients have their
own settings: what a dead node costs depends on them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from ..areas import PAGE, Area
from ..contract import Failed, foreign
from ..serving import Driver, serve
from ..transfer.halves import ServerHalf
from .kills import NODES, REPLICAS, VALUE_BYTES, key_of, num_keys, value_of, watch_a_kill
from .mooncake import HOST, PACKAGE, check, free_port, set_up, start_master
from .mooncake_remote import bringing


class Mooncake:
    """A client without a segment of its own. Reads and puts have a buffer each."""

    def __init__(self, store: Any, victim: ServerHalf) -> None:
        self._store = store
        self._victim = victim
        self._replicated = foreign("mooncake.store").ReplicateConfig()
        self._replicated.replica_num = REPLICAS
        self._source, self._target = self._registered(), self._registered()

    def read(self, number: int) -> bool:
        key = key_of(number)
        size = self._store.get_into(key, self._target.address, VALUE_BYTES)
        return bool(size == VALUE_BYTES and self._target.view == value_of(key))

    def put(self, number: int) -> bool:
        return self.store(f"new {number}")

    def store(self, key: str) -> bool:
        self._source.view[:] = value_of(key)
        place = self._source.address, VALUE_BYTES
        return bool(self._store.put_from(key, *place, self._replicated) == 0)

    def kill(self) -> None:
        os.kill(self._victim.pid, signal.SIGKILL)

    def _registered(self) -> Area:
        area = Area(VALUE_BYTES)
        check(self._store.register_buffer(area.address, len(area)), "register_buffer")
        return area


def begin(request: Mapping[str, Any]) -> Driver:
    port = free_port()
    address = f"{HOST}:{port}"
    with contextlib.ExitStack() as stack:
        stack.callback(start_master(port).close)
        segments = [
            ServerHalf(bringing(address, request["dram_bytes"]), PAGE) for _ in range(NODES)
        ]
        for segment in segments:  # ended from the last on, who has the ends of those before
            stack.callback(segment.close)
        store = set_up(address, 0)
        stack.callback(store.close)
        cluster = Mooncake(store, segments[-1])
        for number in range(num_keys(request["watch_seconds"])):
            if not cluster.store(key_of(number)):
                raise Failed(f"a put of {REPLICAS} replicas failed")
        started = stack.pop_all()

    def killed(asked: Mapping[str, Any]) -> dict[str, Any]:
        return watch_a_kill(cluster, asked)

    return Driver(metadata.version(PACKAGE), {"killed": killed}, close=started.close)


if __name__ == "__main__":
    serve(begin)

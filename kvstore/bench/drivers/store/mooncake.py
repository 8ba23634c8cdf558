"""Mooncake: a master process, and a client that brings a segment of its own. Over TCP on loopback,
from and into registered buffers."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from ..areas import Area
from ..contract import Failed, foreign
from ..server import Server
from ..serving import Driver, serve
from .memory import anonymous_bytes
from .timing import Bench

PACKAGE = "mooncake-transfer-engine-non-cuda"
HOST = "127.0.0.1"
LOCAL_BUFFER_BYTES = 64 << 20
CLIENT_TTL_SECONDS = 3600
"""Clients stand still, without heartbeats, while others are measured."""

Place = tuple[int, int]  # address, bytes


class Mooncake:
    def __init__(self, store: Any) -> None:
        self._store = store
        self._addresses: dict[int, int] = {}
        self._areas: list[Area] = []  # registered: they have to stay

    def region(self, area: Area, offset: int, num_bytes: int) -> Place:
        address = self._addresses.get(id(area))
        if address is None:
            address = area.address
            check(self._store.register_buffer(address, len(area)), "register_buffer")
            self._addresses[id(area)] = address
            self._areas.append(area)
        return address + offset, num_bytes

    def put(self, key: str, value: Place) -> bool:
        return bool(self._store.put_from(key, *value) == 0)

    def put_many(self, keys: Sequence[str], values: Sequence[Place]) -> int:
        addresses, sizes = [place[0] for place in values], [place[1] for place in values]
        return sum(status == 0 for status in self._store.batch_put_from(keys, addresses, sizes))

    def get(self, key: str, target: Place) -> bool:
        return bool(self._store.get_into(key, *target) == target[1])

    def get_many(self, keys: Sequence[str], targets: Sequence[Place]) -> int:
        addresses, sizes = [place[0] for place in targets], [place[1] for place in targets]
        got = self._store.batch_get_into(keys, addresses, sizes)
        return sum(size == asked for size, asked in zip(got, sizes, strict=True))

    def count_existing(self, keys: Sequence[str]) -> int:
        return sum(found == 1 for found in self._store.batch_is_exist(keys))

    def remove_many(self, keys: Sequence[str]) -> None:
        for status in self._store.batch_remove(keys, True):
            check(status, "batch_remove")

    def clear(self) -> None:
        if self._store.remove_all(True) < 0:
            raise Failed("remove_all failed")


def start_master(port: int, **settings: object) -> Server:
    """`settings` beside its own defaults."""
    program = Path(foreign("mooncake").__path__[0]) / "mooncake_master"
    flags = {
        "rpc_address": HOST,
        "rpc_port": port,
        "metrics_host": HOST,
        "metrics_port": free_port(),
        **settings,
    }
    command = [str(program), *(f"-{name}={value}" for name, value in flags.items())]
    return Server(command, lambda: _listens(port))


def set_up(master: str, segment_bytes: int) -> Any:
    """A client that brings so much memory. Raises Failed."""
    store = foreign("mooncake.store").MooncakeDistributedStore()
    segment = HOST, "P2PHANDSHAKE", segment_bytes, LOCAL_BUFFER_BYTES
    check(store.setup(*segment, "tcp", "", master), "setup")
    return store


def begin(request: Mapping[str, Any]) -> Driver:
    port = free_port()
    master = start_master(port, client_ttl=CLIENT_TTL_SECONDS)
    store = set_up(f"{HOST}:{port}", request["pool_bytes"])

    def close() -> None:
        store.close()
        master.close()

    bench = Bench(Mooncake(store), request["area_bytes"])
    return Driver(
        metadata.version(PACKAGE),
        {**bench.operations(), "memory": lambda _: anonymous_bytes(master.pid)},
        close=close,
    )


def check(status: int, call: str) -> None:
    if status != 0:
        raise Failed(f"{call} gave {status}")


def _listens(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    serve(begin)

"""Mooncake's TransferEngine over TCP, with metadata exchanged between the two processes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

from ..areas import Area
from ..contract import Failed, foreign
from ..serving import Driver, serve
from .contract import Call, Span, Way
from .halves import Announce, ServerHalf, areas_of
from .timing import Bench

PACKAGE = "mooncake-transfer-engine-non-cuda"
HOST = "127.0.0.1"


def engine_of(areas: Sequence[Area]) -> Any:
    """With the areas registered. It has no setting for its connections. Raises Failed."""
    engine = foreign("mooncake.engine").TransferEngine()
    _check(engine.initialize(HOST, "P2PHANDSHAKE", "tcp", ""), "initialize")
    for area in areas:
        _check(engine.register_memory(area.address, len(area)), "register_memory")
    return engine


@contextlib.contextmanager
def serving(areas: tuple[Area, Area], announce: Announce) -> Iterator[None]:
    engine = engine_of(areas)
    addresses = [area.address for area in areas]
    announce({"peer": f"{HOST}:{engine.get_rpc_port()}", "addresses": addresses})
    yield


class Engine:
    def __init__(self, areas: tuple[Area, Area], hello: Mapping[str, Any]) -> None:
        self._areas = areas  # addresses do not keep them
        self._engine = engine_of(areas)
        self._local = [area.address for area in areas]
        self._remote = hello["addresses"]
        self._peer = hello["peer"]

    def open(self, streams: int, threads: int) -> None:
        pass  # as its defaults are

    def prepare(self, way: Way, slices: Sequence[Span], thread: int) -> Call:
        local, remote = (
            [start + offset for offset, _ in slices]
            for start in (self._local[way.local], self._remote[way.remote])
        )
        lengths = [length for _, length in slices]
        reads = way.do == "read"
        engine, peer = self._engine, self._peer
        move = engine.batch_transfer_sync_read if reads else engine.batch_transfer_sync_write

        def call() -> None:
            _check(move(peer, local, remote, lengths), "batch_transfer_sync")

        return call

    def close(self) -> None:
        pass


def begin(request: Mapping[str, Any]) -> Driver:
    server = ServerHalf(serving, request["area_bytes"])
    areas = areas_of(request["area_bytes"])
    bench = Bench(Engine(areas, server.hello), areas, server.cpu_seconds)
    return Driver(metadata.version(PACKAGE), bench.operations(), close=server.close)


def _check(status: int, call: str) -> None:
    if status != 0:
        raise Failed(f"{call} gave {status}")


if __name__ == "__main__":
    serve(begin)

"""Mooncake with all memory in another process: a master, a process that brings the segment, and a
client that brings none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any

from ..areas import PAGE, Area
from ..serving import Driver, serve
from ..transfer.halves import Announce, Serve, ServerHalf
from .mooncake import (
    CLIENT_TTL_SECONDS,
    HOST,
    PACKAGE,
    Mooncake,
    free_port,
    set_up,
    start_master,
)
from .timing import Bench


def bringing(address: str, pool_bytes: int) -> Serve:
    @contextlib.contextmanager
    def bring_segment(_: tuple[Area, Area], announce: Announce) -> Iterator[None]:
        store = set_up(address, pool_bytes)
        announce({})
        try:
            yield
        finally:
            store.close()

    return bring_segment


def begin(request: Mapping[str, Any]) -> Driver:
    port = free_port()
    master = start_master(port, client_ttl=CLIENT_TTL_SECONDS)
    address = f"{HOST}:{port}"
    segment = ServerHalf(bringing(address, request["pool_bytes"]), PAGE)
    store = set_up(address, 0)

    def close() -> None:
        store.close()
        segment.close()
        master.close()

    bench = Bench(Mooncake(store), request["area_bytes"])
    return Driver(metadata.version(PACKAGE), bench.operations(), close=close)


if __name__ == "__main__":
    serve(begin)

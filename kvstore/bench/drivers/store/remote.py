"""Moontide from another node: clients that reach the daemon over TCP."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import Any

from ....client import connect
from ..serving import Driver, serve
from .ours import CALL_SECONDS, Moontide
from .timing import Bench


def begin(request: Mapping[str, Any]) -> Driver:
    address, token = request["address"], request["token"]
    writer, reader = (connect(address, token=token, timeout_s=CALL_SECONDS) for _ in range(2))

    def close() -> None:
        writer.close()
        reader.close()

    bench = Bench(Moontide(writer, reader), request["area_bytes"])
    return Driver(metadata.version("moontide"), bench.operations(), close=close)


if __name__ == "__main__":
    serve(begin)

"""memcpy within one process: what a transfer cannot do without. It has no server half, and streams
change nothing."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Mapping, Sequence
from typing import Any

from ..areas import Area
from ..serving import Driver, serve
from .contract import Call, Span, Way
from .halves import areas_of
from .timing import Bench


class Copies:
    def __init__(self, local: tuple[Area, Area], remote: tuple[Area, Area]) -> None:
        self._areas = local, remote  # addresses do not keep them
        self._local = [area.address for area in local]
        self._remote = [area.address for area in remote]

    def open(self, streams: int, threads: int) -> None:
        pass  # nothing to connect

    def prepare(self, way: Way, slices: Sequence[Span], thread: int) -> Call:
        local, remote = self._local[way.local], self._remote[way.remote]
        target, source = (local, remote) if way.do == "read" else (remote, local)
        copies = [(target + offset, source + offset, length) for offset, length in slices]

        def call() -> None:
            for copy in copies:
                ctypes.memmove(*copy)

        return call

    def close(self) -> None:
        pass


def begin(request: Mapping[str, Any]) -> Driver:
    local, remote = (areas_of(request["area_bytes"]) for _ in range(2))
    bench = Bench(Copies(local, remote), local, lambda: 0.0)
    return Driver(f"Python {platform.python_version()}", bench.operations())


if __name__ == "__main__":
    serve(begin)

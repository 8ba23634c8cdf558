"""NIXL with its UCX backend over TCP. Handles are made beforehand and posted again and again; who
waits asks for their state, as NIXL's users do."""

from __future__ import annotations

import base64
import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

from ..areas import Area
from ..contract import Failed, foreign
from ..serving import Driver, serve
from .contract import Call, Span, Way
from .halves import Announce, ServerHalf, areas_of
from .timing import Bench

PACKAGE = "nixl-cu12"
UCX = {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo", "NIXL_LOG_LEVEL": "WARN"}
"""Read by UCX when an agent is made; without, it takes shared memory between two processes."""


def agent_of(name: str, areas: Sequence[Area]) -> Any:
    """With the areas registered, and a progress thread."""
    os.environ.update(UCX)
    nixl = foreign("nixl_cu12._api")
    agent = nixl.nixl_agent(name, nixl.nixl_agent_config(enable_prog_thread=True))
    agent.register_memory([(area.address, len(area), 0, "") for area in areas], "DRAM")
    return agent


@contextlib.contextmanager
def serving(areas: tuple[Area, Area], announce: Announce) -> Iterator[None]:
    agent = agent_of("server", areas)
    told = base64.b64encode(agent.get_agent_metadata()).decode()
    announce({"metadata": told, "addresses": [area.address for area in areas]})
    yield


class Agent:
    def __init__(self, areas: tuple[Area, Area], hello: Mapping[str, Any]) -> None:
        self._areas = areas  # addresses do not keep them
        self._agent = agent_of("client", areas)
        self._local = [area.address for area in areas]
        self._remote = hello["addresses"]
        self._peer = self._agent.add_remote_agent(base64.b64decode(hello["metadata"]))
        self._handles: list[Any] = []

    def open(self, streams: int, threads: int) -> None:
        """UCX has no setting for a number of streams over TCP."""
        for handle in self._handles:
            self._agent.release_xfer_handle(handle)
        self._handles = []

    def prepare(self, way: Way, slices: Sequence[Span], thread: int) -> Call:
        agent = self._agent
        local, remote = (
            agent.get_xfer_descs([(at + offset, length, 0) for offset, length in slices], "DRAM")
            for at in (self._local[way.local], self._remote[way.remote])
        )
        handle = agent.initialize_xfer(way.do.upper(), local, remote, self._peer)
        self._handles.append(handle)

        def call() -> None:
            state = agent.transfer(handle)
            while state == "PROC":
                state = agent.check_xfer_state(handle)
            if state != "DONE":
                raise Failed(f"the transfer ended as {state}")

        return call

    def close(self) -> None:
        self.open(0, 0)


def begin(request: Mapping[str, Any]) -> Driver:
    server = ServerHalf(serving, request["area_bytes"])
    areas = areas_of(request["area_bytes"])
    agent = Agent(areas, server.hello)

    def close() -> None:
        agent.close()
        server.close()

    bench = Bench(agent, areas, server.cpu_seconds)
    return Driver(metadata.version(PACKAGE), bench.operations(), close=close)


if __name__ == "__main__":
    serve(begin)

"""Moontide's TCP transport, as its users have it: batches of requests to a server of segments,
checksums being the store's affair."""

from __future__ import annotations

import contextlib
import secrets
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

from moontide.transfer import Access, SegmentRegistry, TcpLimits, TcpTransport, TransferServer
from moontide.transfer.types import (
    Instance,
    Opcode,
    SegmentAddress,
    SliceState,
    TransferRequest,
)

from ..areas import Area
from ..contract import Failed
from ..serving import Driver, serve
from .contract import Call, Remote, Span, Way
from .halves import Announce, Serve, ServerHalf, areas_of
from .timing import Bench

HOST = "127.0.0.1"
CALL_SECONDS = 60.0
OPCODES = {"read": Opcode.READ, "write": Opcode.WRITE}


def serving(token: bytes) -> Serve:
    @contextlib.contextmanager
    def serve_areas(areas: tuple[Area, Area], announce: Announce) -> Iterator[None]:
        segments = SegmentRegistry()
        segments.add(Remote.SERVED, areas[Remote.SERVED].view)
        segments.add(Remote.LANDING, areas[Remote.LANDING].view, Access.LANDING)
        instance = str(Instance.new("server"))
        listener = socket.create_server((HOST, 0))
        server = TransferServer(listener, token=token, instance=instance, segments=segments)
        server.start()
        announce({"instance": instance, "port": server.address[1]})
        try:
            yield
        finally:
            server.close()

    return serve_areas


class Transport:
    """One transport for all threads."""

    def __init__(self, areas: tuple[Area, Area], token: bytes, hello: Mapping[str, Any]) -> None:
        self._areas = areas
        self._token = token
        self._hello = hello
        self._transport: TcpTransport | None = None

    def open(self, streams: int, threads: int) -> None:
        self.close()
        limits = TcpLimits(streams_per_peer=streams)
        self._transport = TcpTransport(self._token, Instance.new("client"), limits)
        self._transport.add_route(self._hello["instance"], HOST, self._hello["port"])

    def prepare(self, way: Way, slices: Sequence[Span], thread: int) -> Call:
        transport, memory = self._transport, self._areas[way.local].view
        assert transport is not None
        remote = SegmentAddress(self._hello["instance"], way.remote)
        requests = [
            TransferRequest(OPCODES[way.do], memory[offset : offset + length], remote, offset)
            for offset, length in slices
        ]

        def call() -> None:
            deadline = time.monotonic() + CALL_SECONDS
            for status in transport.transfer(requests, deadline=deadline):
                if status.state is not SliceState.DONE:
                    raise Failed(f"a slice ended as {status.state.value}: {status.reason}")

        return call

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def begin(request: Mapping[str, Any]) -> Driver:
    token = secrets.token_bytes(32)
    server = ServerHalf(serving(token), request["area_bytes"])
    areas = areas_of(request["area_bytes"])
    transport = Transport(areas, token, server.hello)

    def close() -> None:
        transport.close()
        server.close()

    bench = Bench(transport, areas, server.cpu_seconds)
    return Driver(metadata.version("moontide"), bench.operations(), close=close)


if __name__ == "__main__":
    serve(begin)

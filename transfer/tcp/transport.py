"""TCP: reads and writes of peers' segments through their TransferServer."""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import dataclass, field

from ..batches import Batch, Limits
from ..errors import InvalidRequest, NoRoute, Unreachable
from ..tls import TlsEndpoint
from ..transport import CLOSE_SECONDS, CLOSED, BatchTransport
from ..types import Instance, SliceState, SliceStatus
from .handshake import greet
from .pieces import Piece, pieces_of
from .route import Peer, Route
from .stream import Dial, Stream, StreamLimits


@dataclass(frozen=True, slots=True)
class TcpLimits:
    in_flight: Limits = field(default_factory=Limits)
    stream: StreamLimits = field(default_factory=StreamLimits)
    streams_per_peer: int = 2
    max_routes: int = 1024
    dial_seconds: float = 3.0


class TcpTransport(BatchTransport):
    """A client of the servers it has routes to, each named by its instance: an answer of another
    instance at the same address is refused. Sockets come with the first work for a peer. With `tls`
    all of them speak it; `source`: the address of this machine that they leave from."""

    def __init__(
        self,
        token: bytes,
        local: Instance,
        limits: TcpLimits | None = None,
        *,
        tls: TlsEndpoint | None = None,
        source: str = "",
    ) -> None:
        self._limits = limits or TcpLimits()
        super().__init__("transfer-tcp", self._limits.in_flight)
        self._source = (source, 0) if source else None
        self._token = token
        self._tls = tls
        self._local = str(local)
        self._lock = threading.Lock()
        self._routes: dict[str, Route] = {}

    def add_route(self, instance: str, host: str, port: int) -> None:
        """Where `instance` listens; a route to another address is dropped first. Raises
        InvalidRequest when there are too many."""
        peer = Peer(instance, host, port)
        with self._lock:
            known = self._routes.get(instance)
            if known is not None and known.peer == peer:
                return
            if known is None and len(self._routes) >= self._limits.max_routes:
                raise InvalidRequest(
                    f"{len(self._routes)} routes, at most {self._limits.max_routes}: drop some"
                )
            self._routes[instance] = Route(
                peer,
                self._dial_of(peer),
                self._batches,
                max_streams=self._limits.streams_per_peer,
                limits=self._limits.stream,
            )
        if known is not None:
            known.close(_no_route(instance))

    def drop_route(self, instance: str) -> None:
        """The peer is gone: what is under way to it fails. Unknown ones are left alone."""
        with self._lock:
            route = self._routes.pop(instance, None)
        if route is not None:
            route.close(_no_route(instance))

    def _start(self, batch: Batch) -> None:
        for stream in self._enqueue(batch):
            stream.listen()

    def _attend(self, batch: Batch) -> None:
        streams = self._enqueue(batch)
        for stream in streams[1:]:
            stream.listen()
        if streams:
            streams[0].receive_for(batch)

    def _enqueue(self, batch: Batch) -> list[Stream]:
        """The streams that were given some of it."""
        by_route: dict[Route, list[Piece]] = {}
        for index, request in enumerate(batch.requests):
            route = self._routes.get(request.remote.instance)
            if route is None:
                self._batches.settle(batch, index, _no_route(request.remote.instance))
            else:
                piece_bytes = route.piece_bytes(request.local.nbytes)
                pieces = pieces_of(self._batches, batch, index, piece_bytes)
                by_route.setdefault(route, []).extend(pieces)
        return [s for route, pieces in by_route.items() for s in route.enqueue(batch, pieces)]

    def _stop(self, batch: Batch, ending: SliceStatus) -> None:
        with self._lock:
            routes = list(self._routes.values())
        for route in routes:
            route.withdraw(batch, ending)

    def _shut(self) -> None:
        with self._lock:
            routes, self._routes = list(self._routes.values()), {}
        streams = [s for route in routes for s in route.close(CLOSED)]
        deadline = time.monotonic() + CLOSE_SECONDS
        for stream in streams:
            stream.join(max(deadline - time.monotonic(), 0))

    def _dial_of(self, peer: Peer) -> Dial:
        def dial() -> tuple[socket.socket, int]:
            deadline = time.monotonic() + self._limits.dial_seconds
            try:
                sock = socket.create_connection(
                    (peer.host, peer.port), self._limits.dial_seconds, self._source
                )
            except OSError as error:
                raise Unreachable(
                    f"{peer.instance} at {peer.host}:{peer.port}: {error.strerror or error}"
                ) from error
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._tls is not None:
                    name = f"{peer.instance} at {peer.host}:{peer.port}"
                    sock = self._tls.dial(sock, peer=name, deadline=deadline)
                version = greet(
                    sock, self._token, client=self._local, server=peer.instance, deadline=deadline
                )
            except BaseException:
                sock.close()
                raise
            return sock, version

        return dial


def _no_route(instance: str) -> SliceStatus:
    return SliceStatus(SliceState.FAILED, NoRoute(f"no route to {instance}").reason)

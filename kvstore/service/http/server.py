"""Listening: bind with a clear error, serve, end gracefully."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
from dataclasses import dataclass

from aiohttp import web

from ...errors import Conflict, InvalidRequest
from ..values import HostPort
from .app import CLOSING, ERRORS, LIMITS
from .connection import Connection

_BACKLOG = 512


def bind_listener(address: HostPort) -> socket.socket:
    """A listening TCP socket, non-blocking. Port 0 takes a free one: `getsockname` tells. Raises
    Conflict when the port is taken, InvalidRequest when the host is not of this machine."""
    try:
        found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise InvalidRequest(f"cannot listen on {address}: {error.strerror}") from error
    family, kind, protocol, _, target = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(target)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise Conflict(
                f"cannot listen on {address}: the port is taken; give another, or 0 for a free one"
            ) from error
        raise InvalidRequest(f"cannot listen on {address}: {error.strerror}") from error
    return listener


def bound_address(listener: socket.socket) -> HostPort:
    host, port = listener.getsockname()[:2]
    return HostPort(host, port)


@dataclass(frozen=True, slots=True)
class HttpServer:
    """A running service. `close` refuses new connections, lets streams end, then cancels the
    rest."""

    address: HostPort
    _app: web.Application
    _runner: web.AppRunner
    _acceptor: asyncio.Server

    @property
    def url(self) -> str:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.address.host, self.address.host)
        return f"http://{HostPort(host, self.address.port)}"

    @classmethod
    async def start(cls, app: web.Application, listen: HostPort | socket.socket) -> HttpServer:
        """Serve `app` in this loop. Raises as `bind_listener`."""
        listener = bind_listener(listen) if isinstance(listen, HostPort) else listen
        limits = app[LIMITS]
        runner = web.AppRunner(
            app, handler_cancellation=True, shutdown_timeout=limits.shutdown_seconds
        )
        await runner.setup()
        server = runner.server
        assert server is not None
        acceptor = await asyncio.get_running_loop().create_server(
            lambda: Connection(server, limits, app[ERRORS]), sock=listener, backlog=_BACKLOG
        )
        return cls(bound_address(listener), app, runner, acceptor)

    async def close(self) -> None:
        self._app[CLOSING].set()
        self._acceptor.close()
        await self._runner.cleanup()


async def wait_for_stop() -> signal.Signals:
    """Wait for SIGTERM or SIGINT; which of them came. A second one ends the process as usual."""
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[signal.Signals] = loop.create_future()

    def stop(number: signal.Signals) -> None:
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(each)
        if not stopped.done():
            stopped.set_result(number)

    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, stop, each)
    return await stopped

"""Bounds of connections that aiohttp has none for: how many there are, how long one may take to
send its first request, and what bytes that are no HTTP leave in the log."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

from aiohttp import web

from .errors import ErrorShape, HttpError, error_response
from .routes import Limits

logger = logging.getLogger(__name__)
_LINGER_SECONDS = 1.0  # how long an unread body is read away before the connection is closed
_IDLE_SECONDS = 75.0  # between requests of one connection


class Connection(web.RequestHandler):
    """One client's connection."""

    __slots__ = ("_errors", "_first_request_timer", "_limits", "_server")

    def __init__(self, server: web.Server, limits: Limits, errors: ErrorShape) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            lingering_time=_LINGER_SECONDS,
            keepalive_timeout=_IDLE_SECONDS,
        )
        self._server = server
        self._limits = limits
        self._errors = errors
        self._first_request_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        cut = cast(asyncio.Transport, transport).abort  # uvloop's are no subclass
        if len(self._server.connections) > self._limits.connections:
            cut()
            return
        self._first_request_timer = asyncio.get_running_loop().call_later(
            self._limits.header_seconds, cut
        )

    def connection_lost(self, exc: BaseException | None) -> None:
        self.request_came()
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What cannot be parsed is the client's fault: a 400, and no traceback in our log."""
        if status >= 500 or request.writer.output_size > 0:
            return super().handle_error(request, status, exc, message)
        logger.debug("malformed_request peer=%s reason=%s", request.remote, exc)
        reason = str(message or exc).partition("\n")[0]
        response = error_response(HttpError(status, "bad_request", reason), self._errors)
        response.force_close()
        return response

    def request_came(self) -> None:
        """The client is one that speaks HTTP; from now on the idle limit holds."""
        if self._first_request_timer is not None:
            self._first_request_timer.cancel()
            self._first_request_timer = None


def mark_request(request: web.Request) -> None:
    protocol: Any = request.protocol
    if isinstance(protocol, Connection):
        protocol.request_came()

"""Server-sent events: bounded, kept alive, ended by the client, the server or the source."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from .routes import Call

_KEEP_ALIVE = b": keep-alive\n\n"


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event. `data` is one line, usually JSON."""

    data: bytes
    event: str = ""

    def encode(self) -> bytes:
        head = f"event: {self.event}\n".encode() if self.event else b""
        return head + b"data: " + self.data + b"\n\n"


async def send_events(
    call: Call[Any, Any],
    events: AsyncIterator[ServerEvent],
    *,
    keep_alive_seconds: float = 5.0,
    write_seconds: float = 10.0,
    headers: Mapping[str, str] | None = None,
) -> web.StreamResponse:
    """Send `events` until they end, the server closes, or the client goes away (this task is then
    cancelled, and `events` closed). The source is asked for the next event only when the last one
    was taken by the socket: a source with a queue bounds it itself. A client that takes nothing for
    `write_seconds` is cut off."""
    response = web.StreamResponse(headers={"Cache-Control": "no-store", **(headers or {})})
    response.content_type = "text/event-stream"
    response.charset = "utf-8"
    closing = asyncio.create_task(call.closing.wait())
    upcoming: asyncio.Task[ServerEvent] | None = None
    try:
        await response.prepare(call.http)
        while True:
            upcoming = upcoming or asyncio.create_task(_next(events))
            waited: set[asyncio.Task[Any]] = {upcoming, closing}
            done, _ = await asyncio.wait(
                waited,
                timeout=keep_alive_seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if closing in done:
                break
            piece = _KEEP_ALIVE
            if upcoming in done:
                try:
                    piece = upcoming.result().encode()
                except StopAsyncIteration:
                    break
                upcoming = None
            async with asyncio.timeout(write_seconds):
                await response.write(piece)
    except (TimeoutError, ConnectionResetError):
        response.force_close()
        if call.http.transport is not None:
            call.http.transport.abort()
        return response
    finally:
        await _stop(closing, upcoming)
        if hasattr(events, "aclose"):
            await events.aclose()
    await response.write_eof()
    return response


async def _next(events: AsyncIterator[ServerEvent]) -> ServerEvent:
    return await anext(events)


async def _stop(*futures: asyncio.Future[Any] | None) -> None:
    for future in futures:
        if future is not None:
            future.cancel()
            await asyncio.wait({future})

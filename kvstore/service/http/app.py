"""An aiohttp application from a list of routes: checks, decoding, typed errors, OpenAPI."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from importlib import metadata
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from ...errors import StoreError
from .connection import mark_request
from .decode import decode_json, decode_query
from .errors import DEFAULT_ERRORS, ErrorShape, HttpError, error_response, from_store_error
from .guard import Guard
from .openapi import openapi_document
from .routes import AnyRoute, Auth, Call, Limits, Route, decodes_empty

logger = logging.getLogger(__name__)

CLOSING = web.AppKey("closing", asyncio.Event)
LIMITS = web.AppKey("limits", Limits)
ERRORS = web.AppKey("errors", ErrorShape)
_JSON = "application/json"

_Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def build_app(
    routes: Sequence[AnyRoute],
    *,
    title: str,
    token: str | None,
    api_keys: Collection[str] = (),
    hosts: Collection[str] = (),
    limits: Limits | None = None,
    errors: ErrorShape = DEFAULT_ERRORS,
) -> web.Application:
    """The service. Serves `/openapi.json` beside `routes`. Call it with a running event loop."""
    limits = limits or Limits()
    service = _Service(Guard.create(token=token, api_keys=api_keys, hosts=hosts), limits, errors)
    app = web.Application(middlewares=[service.middleware])
    app[CLOSING] = service.closing
    app[LIMITS] = limits
    app[ERRORS] = errors
    document = Route(
        method="GET",
        path="/openapi.json",
        handler=_document_handler(routes, title, errors),
        summary="This description",
        response=dict[str, Any],
        auth=Auth.OPEN,
    )
    for route in (*routes, document):
        app.router.add_route(route.method, route.path, service.endpoint(route))
    return app


def _document_handler(
    routes: Sequence[AnyRoute], title: str, errors: ErrorShape
) -> Callable[[Call[None, None]], Awaitable[object]]:
    @functools.cache  # few ask for it, and every daemon starts
    def text() -> bytes:
        version = metadata.version("moontide")
        return msgspec.json.encode(
            openapi_document(routes, title=title, version=version, errors=errors)
        )

    async def document(call: Call[None, None]) -> bytes:
        return text()

    return document


class _Service:
    """The checks every request passes, in order: bound on requests in flight, host and token, body,
    query."""

    def __init__(self, guard: Guard, limits: Limits, errors: ErrorShape) -> None:
        self.closing = asyncio.Event()
        self._guard = guard
        self._limits = limits
        self._errors = errors
        self._in_flight = 0

    def endpoint(self, route: AnyRoute) -> _Answer:
        async def answer(request: web.Request) -> web.StreamResponse:
            self._guard.check(request, route.auth)
            query = decode_query(request, route.query)
            body = await self._decode_body(request, route)
            path = dict(request.match_info)
            result = await route.handler(Call(body, query, path, request, self.closing))
            return _response(result, route.media)

        return answer

    @web.middleware
    async def middleware(self, request: web.Request, handler: _Answer) -> web.StreamResponse:
        """The request boundary: whatever goes wrong becomes an answer, once logged."""
        mark_request(request)
        if self._in_flight >= self._limits.in_flight:
            return self._failure(
                request,
                HttpError(503, "busy", f"{self._in_flight} requests are running", retryable=True),
            )
        self._in_flight += 1
        try:
            return await handler(request)
        except HttpError as error:
            return self._failure(request, error)
        except StoreError as error:
            return self._failure(request, from_store_error(error))
        except web.HTTPException as error:
            return self._failure(request, _from_aiohttp(request, error))
        except (HttpProcessingError, web.RequestPayloadError, ConnectionResetError) as error:
            return self._failure(request, HttpError(400, "bad_request", str(error)))
        except Exception:  # the request boundary
            logger.exception("request_failed method=%s path=%s", request.method, request.path)
            return self._failure(
                request, HttpError(500, "internal", "an error of ours; see the log")
            )
        finally:
            self._in_flight -= 1

    def _failure(self, request: web.Request, error: HttpError) -> web.Response:
        response = error_response(error, self._errors)
        if not request.content.is_eof():
            response.force_close()  # the rest of the body is not read
        return response

    async def _decode_body(self, request: web.Request, route: AnyRoute) -> object:
        if route.request is None:
            return None
        raw = await self._read(request, route.max_body_bytes or self._limits.body_bytes)
        if not raw and "Content-Type" not in request.headers and decodes_empty(route.request):
            raw = b"{}"
        elif request.content_type != _JSON:
            raise HttpError(
                415, "not_json", f"Content-Type is {request.content_type!r}: send {_JSON}"
            )
        return decode_json(raw, route.request)

    async def _read(self, request: web.Request, bound: int) -> bytes:
        """The body, at most `bound` bytes, within the time limit."""
        too_large = HttpError(
            413, "body_too_large", f"the body exceeds the limit of {int(bound)} bytes: send less"
        )
        if (request.content_length or 0) > bound:
            raise too_large
        received = bytearray()
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                async for piece in request.content.iter_any():
                    received += piece
                    if len(received) > bound:
                        raise too_large
        except TimeoutError as error:
            raise HttpError(
                408,
                "body_timeout",
                f"{len(received)} bytes of the body arrived in {self._limits.body_seconds:g} s",
                retryable=True,
            ) from error
        return bytes(received)


def _response(result: object, media: str) -> web.StreamResponse:
    if isinstance(result, web.StreamResponse):
        return result
    if isinstance(result, (str, bytes)):
        body = result.encode() if isinstance(result, str) else result
        return web.Response(body=body, content_type=media, charset=_charset(media))
    return web.Response(body=msgspec.json.encode(result), content_type=media)


def _charset(media: str) -> str | None:
    return "utf-8" if media.startswith("text/") else None


def _from_aiohttp(request: web.Request, error: web.HTTPException) -> HttpError:
    codes = {404: "not_found", 405: "method_not_allowed", 413: "body_too_large"}
    headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
    text = f"{request.method} {request.path[:200]}: {error.reason}"
    return HttpError(error.status, codes.get(error.status, "http_error"), text, headers=headers)

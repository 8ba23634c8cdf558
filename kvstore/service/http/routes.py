"""What a service declares of its HTTP interface; the rest (checks, decoding, OpenAPI) follows from
it."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec
from aiohttp import web

BodyT = TypeVar("BodyT")
QueryT = TypeVar("QueryT")


class Auth(enum.Enum):
    """Who may call a route."""

    TOKEN = "cluster token"
    API_KEY = "API key or cluster token, open when no key is configured"
    OPEN = "anyone"
    LOOPBACK = "anyone on this machine, else the cluster token"


@dataclass(frozen=True, slots=True)
class Call(Generic[BodyT, QueryT]):
    """One request, checked and decoded. The handler's task is cancelled when the client goes
    away."""

    body: BodyT
    query: QueryT
    path: Mapping[str, str]  # decoded path parameters
    http: web.Request
    closing: asyncio.Event  # set when the server shuts down: long answers end then


Handler = Callable[[Call[BodyT, QueryT]], Awaitable[object]]
"""Answers a `msgspec.Struct` (JSON), `str` or `bytes` (of the route's media type), or a finished
`web.StreamResponse`. Raises HttpError or StoreError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route(Generic[BodyT, QueryT]):
    """`request` and `query` are structs the body and the query string are decoded into. `response`
    describes the answer; `stream` each event where the answer is, or may be, an event stream.
    `errors` are statuses the handler itself raises."""

    method: str
    path: str  # `{name}` is one path segment, `{name:.+}` the rest
    handler: Handler[BodyT, QueryT]
    summary: str
    request: type[BodyT] | None = None
    query: type[QueryT] | None = None
    response: Any = None
    stream: Any = None
    media: str = "application/json"
    auth: Auth = Auth.TOKEN
    errors: Mapping[int, str] = field(default_factory=dict)
    max_body_bytes: int | None = None  # instead of the service's limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one HTTP service."""

    body_bytes: int = 1 << 20
    body_seconds: float = 10.0  # to receive the whole body
    in_flight: int = 1024  # requests at once, streams included
    header_seconds: float = 10.0  # to receive a connection's first request line and headers
    connections: int = 4096
    shutdown_seconds: float = 5.0


AnyRoute = Route[Any, Any]


def decodes_empty(kind: type) -> bool:
    """Whether an absent body means the struct's defaults."""
    try:
        msgspec.convert({}, kind)
    except msgspec.ValidationError:
        return False
    return True

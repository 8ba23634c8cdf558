"""A small service made with the HTTP kit, running in a thread as a daemon would run it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Annotated

import msgspec
import pytest
import uvloop

from moontide.kvstore.errors import Busy, Conflict, InvalidRequest
from moontide.kvstore.service import (
    AnyRoute,
    Auth,
    Call,
    HostPort,
    HttpServer,
    Limits,
    Route,
    ServerEvent,
    build_app,
    send_events,
)

TOKEN = "token-of-the-test-service"
START_SECONDS = 10.0


@pytest.fixture(autouse=True)
def _garbage_fails_its_own_test(own_garbage: None) -> None:
    """See there."""


class Query(msgspec.Struct, forbid_unknown_fields=True):
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 10
    tier: str | None = None
    exact: bool = False


class Body(msgspec.Struct, forbid_unknown_fields=True):
    text: str
    numbers: list[Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]] = []


class Optional(msgspec.Struct, forbid_unknown_fields=True):
    dry_run: bool = False


class Answer(msgspec.Struct):
    length: int
    limit: int = 0


class Fault(msgspec.Struct, forbid_unknown_fields=True):
    kind: str = "none"


@dataclass(slots=True)
class Witness:
    """What the handlers saw; read by tests from another thread."""

    streams_ended: threading.Event
    cancelled: threading.Event
    entered: threading.Event


async def echo(call: Call[Body, Query]) -> Answer:
    return Answer(len(call.body.text), call.query.limit)


async def clear(call: Call[Optional, None]) -> Answer:
    return Answer(int(call.body.dry_run))


async def item(call: Call[None, None]) -> Answer:
    return Answer(len(call.path["name"]))


async def fault(call: Call[None, Fault]) -> Answer:
    errors: dict[str, Callable[[], Exception]] = {
        "invalid": lambda: InvalidRequest("n=3 exceeds 2; send less"),
        "conflict": lambda: Conflict("the name is taken"),
        "busy": lambda: Busy("the queue of 4 is full"),
        "bug": lambda: ZeroDivisionError("secret detail"),
    }
    if call.query.kind in errors:
        raise errors[call.query.kind]()
    return Answer(0)


async def ping(call: Call[None, None]) -> str:
    return "ok"


async def nothing(call: Call[None, None]) -> Answer:
    return Answer(0)


ROUTES: list[AnyRoute] = [
    Route(
        method="POST",
        path="/v1/echo",
        handler=echo,
        summary="Length of a text",
        request=Body,
        query=Query,
        response=Answer,
    ),
    Route(
        method="POST",
        path="/v1/clear",
        handler=clear,
        summary="A body that may be absent",
        request=Optional,
        response=Answer,
    ),
    Route(
        method="GET",
        path="/v1/items/{name}",
        handler=item,
        summary="Length of a name",
        response=Answer,
    ),
    Route(
        method="GET",
        path="/v1/fault",
        handler=fault,
        summary="Fail on demand",
        query=Fault,
        response=Answer,
        errors={409: "Conflict"},
    ),
    Route(
        method="GET",
        path="/healthz",
        handler=ping,
        summary="Liveness",
        media="text/plain",
        auth=Auth.OPEN,
    ),
    Route(
        method="GET",
        path="/metrics",
        handler=ping,
        summary="Metrics",
        media="text/plain",
        auth=Auth.LOOPBACK,
    ),
    Route(
        method="GET",
        path="/v1/models",
        handler=nothing,
        summary="Open unless API keys are set",
        response=Answer,
        auth=Auth.API_KEY,
    ),
]


def routes(witness: Witness) -> list[AnyRoute]:
    """ROUTES and two that never end."""

    async def wait(call: Call[None, None]) -> Answer:
        witness.entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            witness.cancelled.set()
            raise
        return Answer(0)

    async def events(call: Call[None, None]) -> object:
        return await send_events(call, _endless(witness), keep_alive_seconds=0.05)

    return [
        *ROUTES,
        Route(method="GET", path="/v1/wait", handler=wait, summary="Never ends", response=Answer),
        Route(method="GET", path="/v1/events", handler=events, summary="Stream", stream=Answer),
    ]


async def _endless(witness: Witness) -> AsyncIterator[ServerEvent]:
    try:
        yield ServerEvent(b'{"length":1}', "first")
        await asyncio.Event().wait()
    finally:
        witness.streams_ended.set()


@dataclass(frozen=True, slots=True)
class Served:
    url: str
    address: HostPort
    witness: Witness
    close: Callable[[], None]


Serve = Callable[..., Served]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start a service; keyword arguments are those of `build_app`."""
    started: list[Served] = []

    def start(**options: object) -> Served:
        served = _serve_in_thread(options)
        started.append(served)
        return served

    yield start
    for served in started:
        served.close()


def _serve_in_thread(options: dict[str, object]) -> Served:
    witness = Witness(threading.Event(), threading.Event(), threading.Event())
    box: list[tuple[asyncio.AbstractEventLoop, asyncio.Event, HttpServer]] = []
    is_ready = threading.Event()

    async def main() -> None:
        limits = options.pop("limits", Limits(shutdown_seconds=0.2))
        app = build_app(
            routes(witness),
            title="Test",
            token=TOKEN,
            limits=limits,
            **options,  # type: ignore[arg-type]  # by keyword
        )
        server = await HttpServer.start(app, HostPort("127.0.0.1", 0))
        stop = asyncio.Event()
        box.append((asyncio.get_running_loop(), stop, server))
        is_ready.set()
        await stop.wait()
        await server.close()

    def run() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as the daemons do
            runner.run(main())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert is_ready.wait(START_SECONDS)
    loop, stop, server = box[0]

    def close() -> None:
        if thread.is_alive():
            loop.call_soon_threadsafe(stop.set)
            thread.join(START_SECONDS)
        assert not thread.is_alive()

    return Served(server.url, server.address, witness, close)

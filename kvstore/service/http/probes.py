"""The three routes that every daemon has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from .routes import AnyRoute, Auth, Call, Route

Plain = Call[None, None]
"""A request without body and query."""


class Alive(msgspec.Struct, frozen=True):
    status: Literal["ok"] = "ok"


def probe_routes(
    check_ready: Callable[[Plain], None], metrics: Callable[[], bytes]
) -> list[AnyRoute]:
    """`/healthz`, `/readyz` and `/metrics`. `check_ready` raises HttpError 503 while no work is
    taken; `metrics` renders the Prometheus exposition."""

    async def healthz(call: Plain) -> Alive:
        return Alive()

    async def readyz(call: Plain) -> Alive:
        check_ready(call)
        return Alive()

    async def render(call: Plain) -> bytes:
        return metrics()

    return [
        Route(
            method="GET",
            path="/healthz",
            handler=healthz,
            summary="The process answers",
            response=Alive,
            auth=Auth.OPEN,
        ),
        Route(
            method="GET",
            path="/readyz",
            handler=readyz,
            summary="Work is taken",
            response=Alive,
            auth=Auth.OPEN,
            errors={503: "starting, stopping or without what it needs"},
        ),
        Route(
            method="GET",
            path="/metrics",
            handler=render,
            summary="Prometheus metrics",
            media="text/plain",
            auth=Auth.LOOPBACK,
        ),
    ]

"""The Conductor as a service: its parts put together, and its routes."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager

from moontide.kvstore.index import PrefixIndex
from moontide.kvstore.membership import Membership
from moontide.kvstore.service import (
    AnyRoute,
    Auth,
    HttpServer,
    Limits,
    Route,
    build_app,
    probe_routes,
)

from .cluster.view import ClusterView, Policy
from .cluster.watcher import Watcher
from .errors import OPENAI_ERRORS
from .frontend import FrontEnd
from .metrics import Metrics
from .protocol import (
    ChatChunk,
    ChatCompletion,
    ChatRequest,
    Completion,
    CompletionRequest,
    ModelList,
)
from .relay import Deadlines, Relay
from .settings import ConductorSettings
from .status import ClusterStatus, RouteRequest, RouteStatus, Status
from .tokenising import TokeniserPool
from .upstream import WorkerCalls

SPARE_CONNECTIONS = 64
"""Requests beyond `max_in_flight` that are still answered: refusals, status, metrics."""

_GENERATION_ERRORS = {
    429: "Too many requests, or no worker would answer in time; retry later",
    502: "The worker answered, but not as agreed",
    503: "No worker takes requests now, or it went away; retry later",
    504: "The answer was not complete at its deadline",
}


@asynccontextmanager
async def conductor(
    settings: ConductorSettings,
    membership: Membership,
    *,
    token: str,
    api_keys: Collection[str] = (),
    hosts: Collection[str] = (),
) -> AsyncIterator[HttpServer]:
    """A running Conductor, ended on leaving. `token` is the cluster's: shown to workers and stores.
    Raises as `bind_listener`."""
    metrics = Metrics()
    policy = Policy(settings.max_queue, settings.ttft_slo, settings.tbt_slo)
    view = ClusterView(PrefixIndex(settings.max_index_blocks), policy, time.monotonic)
    async with AsyncExitStack() as stack:
        pool = stack.enter_context(
            TokeniserPool(threads=settings.tokenizer_threads, max_waiting=settings.max_in_flight)
        )
        calls = await stack.enter_async_context(WorkerCalls(token))
        deadlines = Deadlines(
            settings.first_token_timeout, settings.token_timeout, settings.request_timeout
        )
        relay = Relay(view, calls, metrics, deadlines)
        front_end = FrontEnd(view, relay, pool, metrics, max_in_flight=settings.max_in_flight)
        app = build_app(
            routes(front_end, Status(view, front_end, metrics)),
            title="Moontide Conductor",
            token=token,
            api_keys=api_keys,
            hosts=hosts,
            limits=Limits(
                body_bytes=settings.max_body, in_flight=settings.max_in_flight + SPARE_CONNECTIONS
            ),
            errors=OPENAI_ERRORS,
        )
        server = await HttpServer.start(app, settings.listen)
        stack.push_async_callback(server.close)
        await stack.enter_async_context(Watcher(view, membership, calls, pool))
        yield server


def routes(front_end: FrontEnd, status: Status) -> list[AnyRoute]:
    """All of the Conductor's; also what its OpenAPI document is made from."""
    return [*_generation_routes(front_end), *_status_routes(status)]


def _generation_routes(front_end: FrontEnd) -> list[AnyRoute]:
    return [
        Route(
            method="POST",
            path="/v1/completions",
            handler=front_end.completions,
            summary="Complete a prompt",
            request=CompletionRequest,
            response=Completion,
            stream=Completion,
            auth=Auth.API_KEY,
            errors=_GENERATION_ERRORS,
        ),
        Route(
            method="POST",
            path="/v1/chat/completions",
            handler=front_end.chat,
            summary="Answer a conversation",
            request=ChatRequest,
            response=ChatCompletion,
            stream=ChatChunk,
            auth=Auth.API_KEY,
            errors=_GENERATION_ERRORS,
        ),
    ]


def _status_routes(status: Status) -> list[AnyRoute]:
    return [
        *probe_routes(status.check_ready, status.metrics),
        Route(
            method="POST",
            path="/v1/route",
            handler=status.route,
            summary="Where a request would go now, and why",
            request=RouteRequest,
            response=RouteStatus,
            auth=Auth.API_KEY,
            errors=_GENERATION_ERRORS,
        ),
        Route(
            method="GET",
            path="/v1/models",
            handler=status.models,
            summary="Models that live workers serve",
            response=ModelList,
            auth=Auth.API_KEY,
        ),
        Route(
            method="GET",
            path="/v1/cluster",
            handler=status.cluster,
            summary="Workers, stores and the prefix index",
            response=ClusterStatus,
            auth=Auth.API_KEY,
        ),
    ]

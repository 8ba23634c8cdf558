"""Routes that tell what the store holds and does: figures, tenants, the audit, KV events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from aiohttp import web

from ...errors import Busy
from ...service import AnyRoute, Plain, Route, ServerEvent, send_events
from ...store import AuditReport, Store
from .bodies import TenantsAnswer
from .event_stream import kv_events
from .report import StoreReport

MAX_EVENT_STREAMS = 64


class FigureRoutes:
    def __init__(self, store: Store, report: Callable[[], StoreReport]) -> None:
        self._store = store
        self._report = report
        self.num_event_streams = 0

    def routes(self) -> list[AnyRoute]:
        return [
            Route(
                method="GET",
                path="/v1/stats",
                handler=self._stats,
                summary="Sizes and counters",
                response=StoreReport,
            ),
            Route(
                method="GET",
                path="/v1/tenants",
                handler=self._tenants,
                summary="What the blocks of each tenant hold, the largest first",
                response=TenantsAnswer,
            ),
            Route(
                method="POST",
                path="/v1/audit",
                handler=self._audit,
                summary="Walk everything and compare with the accounts (stops the store meanwhile)",
                response=AuditReport,
            ),
            Route(
                method="GET",
                path="/v1/events",
                handler=self._events,
                summary="KV events: a snapshot, then every change",
                stream=dict[str, Any],
            ),
        ]

    async def _stats(self, call: Plain) -> StoreReport:
        return self._report()

    async def _tenants(self, call: Plain) -> TenantsAnswer:
        return TenantsAnswer(self._store.tenants())

    async def _audit(self, call: Plain) -> AuditReport:
        return self._store.audit()

    async def _events(self, call: Plain) -> web.StreamResponse:
        if self.num_event_streams >= MAX_EVENT_STREAMS:
            raise Busy(f"{MAX_EVENT_STREAMS} event streams are open, the limit; retry later")
        self.num_event_streams += 1
        try:
            return await send_events(call, self._event_source())
        finally:
            self.num_event_streams -= 1

    def _event_source(self) -> AsyncIterator[ServerEvent]:
        return kv_events(self._store.events, str(self._store.instance))

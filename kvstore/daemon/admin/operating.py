"""Routes on the store as a whole: figures, settings, draining, the audit, KV events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from aiohttp import web

from ...errors import Busy
from ...service import AnyRoute, Call, Plain, Route, ServerEvent, send_events
from ...store import AuditReport, Store
from ..drain import Drain
from ..live_settings import LiveSettings
from .bodies import ConfigAnswer, ConfigRequest, DrainAnswer, TenantsAnswer
from .event_stream import kv_events
from .report import StoreReport

MAX_EVENT_STREAMS = 64


class OperatingRoutes:
    def __init__(
        self,
        store: Store,
        *,
        settings: LiveSettings,
        drain: Drain,
        report: Callable[[], StoreReport],
    ) -> None:
        self._store = store
        self._settings = settings
        self._drain = drain
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
                method="POST",
                path="/v1/drain",
                handler=self._begin_drain,
                summary="Take no more writes, and bring what is here to disk",
                response=DrainAnswer,
            ),
            Route(
                method="POST",
                path="/v1/undrain",
                handler=self._end_drain,
                summary="Take writes again",
                response=DrainAnswer,
            ),
            Route(
                method="GET",
                path="/v1/config",
                handler=self._config,
                summary="Settings in force",
                response=ConfigAnswer,
            ),
            Route(
                method="PATCH",
                path="/v1/config",
                handler=self._change_config,
                summary="Change settings until the next start",
                request=ConfigRequest,
                response=ConfigAnswer,
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

    async def _begin_drain(self, call: Plain) -> DrainAnswer:
        """Answered when everything that can be on disk is there, or the time for it is over."""
        is_flushed = await self._drain.begin()
        return DrainAnswer(True, is_flushed, self._in_flight())

    async def _end_drain(self, call: Plain) -> DrainAnswer:
        self._drain.end()
        return DrainAnswer(False, False, self._in_flight())

    def _in_flight(self) -> int:
        return self._report().in_flight

    async def _config(self, call: Plain) -> ConfigAnswer:
        return self._answer()

    def _answer(self) -> ConfigAnswer:
        values = msgspec.structs.asdict(self._settings.in_force)
        return ConfigAnswer(
            {name: _as_flag(value) for name, value in values.items()}, self._settings.changeable
        )

    async def _change_config(self, call: Call[ConfigRequest, None]) -> ConfigAnswer:
        """All of them, or none."""
        self._settings.change(call.body.settings)
        return self._answer()

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


def _as_flag(value: object) -> str:
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return ",".join(map(str, value))
    return "none" if value is None else str(value)

"""The admin interface: every route of a store daemon, by what it is about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...service import AnyRoute, HttpError, Plain, probe_routes
from ...store import Store
from ..drain import Drain
from ..floors import FloorKeeper
from ..live_settings import LiveSettings
from ..peers import Peers
from ..tiers import Tiering
from .blocks import BlockRoutes
from .copying import CopyRoutes
from .disk import DiskInspection
from .ending import EndingRoutes
from .figures import FigureRoutes
from .listing import Listing
from .metrics import render
from .pins import PinRoutes
from .report import StoreReport
from .steering import SteeringRoutes


@dataclass(frozen=True, slots=True, kw_only=True)
class Operated:
    """What the admin interface looks into and steers."""

    store: Store
    settings: LiveSettings
    floors: FloorKeeper
    drain: Drain
    peers: Peers | None
    tiering: Tiering | None


class AdminApi:
    """Answers in the loop that owns the store. `is_ready` says whether the daemon is up."""

    def __init__(
        self,
        operated: Operated,
        *,
        report: Callable[[], StoreReport],
        is_ready: Callable[[], bool],
    ) -> None:
        store, tiering = operated.store, operated.tiering
        listing = Listing(store, DiskInspection(store, tiering) if tiering else None)
        self._drain = operated.drain
        self._report = report
        self._is_ready = is_ready
        self._figures = FigureRoutes(store, report)
        pins = PinRoutes(listing)
        copying = CopyRoutes(listing, operated.peers, tiering, pins.pinned)
        self._parts = (
            self._figures,
            BlockRoutes(listing, operated.peers),
            EndingRoutes(listing, operated.floors, operated.peers),
            pins,
            copying,
            SteeringRoutes(operated.settings, operated.drain, copying, lambda: report().in_flight),
        )

    @property
    def num_event_streams(self) -> int:
        return self._figures.num_event_streams

    def routes(self) -> list[AnyRoute]:
        probes = probe_routes(self._check_ready, self._render_metrics)
        return [*probes, *(route for part in self._parts for route in part.routes())]

    def _check_ready(self, call: Plain) -> None:
        if not self._is_ready():
            raise HttpError(503, "not_ready", "starting or shutting down", retryable=True)
        if self._drain.is_on:
            raise HttpError(503, "draining", "draining: it takes no writes", retryable=True)

    def _render_metrics(self) -> bytes:
        return render(self._report())

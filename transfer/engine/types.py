"""What the engine is told and asked beyond a transport."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NewType, Protocol

from ..batches import Limits
from ..transport import Transport
from .breaker import BreakerLimits

RailName = NewType("RailName", str)
Location = NewType("Location", str)
"""Of local memory: `cpu:NODE`, `cuda:INDEX`."""
ANYWHERE = Location("")


class Routes(Protocol):
    """Where a rail finds its peers, each by its address."""

    def add_route(self, instance: str, host: str, port: int) -> None: ...
    def drop_route(self, instance: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Rail:
    """One way out of this machine: a transport, or one of several that leave by different cards.
    `kind` is the transport's name in metrics. The transport takes as much at once as the engine."""

    name: RailName
    kind: str
    transport: Transport
    routes: Routes


RailRanks = Mapping[Location, Sequence[Sequence[RailName]]]
"""For memory at a location: rails of equal rank together, the best first. Rails that are not named
come after all that are."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
    in_flight: Limits = field(default_factory=Limits)  # of all peers, waiting ones included
    path_bytes: int = 32 << 20  # given to one rail for one peer at once: what cannot be overtaken
    path_seconds: float = 0.05  # as much as it carries in this time, where its rate is known
    path_slices: int = 1024
    parcel_bytes: int = 8 << 20  # travels together; larger slices are cut
    parcel_slices: int = 256
    breaker: BreakerLimits = field(default_factory=BreakerLimits)

"""The engine of a process that reaches its peers over TCP: a rail for each network card it is to
use, and one that goes as the kernel routes."""

from __future__ import annotations

import random
from collections.abc import Sequence

from ..errors import InvalidRequest
from ..tcp import TcpTransport
from ..tls import TlsEndpoint
from ..topology import Topology, ipv4_address
from ..types import Instance
from .engine import TransferEngine
from .types import ANYWHERE, Location, Rail, RailName, RailRanks

ROUTED = RailName("routed")


def tcp_engine(
    token: bytes,
    local: Instance,
    *,
    cards: Sequence[str] = (),
    topology: Topology | None = None,
    home: Location = ANYWHERE,
    tls: TlsEndpoint | None = None,
) -> TransferEngine:
    """Over `cards` as `topology` ranks them for memory at `home`, and beside them where none of
    them works. Raises InvalidRequest for a card without an IPv4 address."""
    sources = {RailName(card): _address_of(card) for card in cards}
    rails = []
    for name, source in {**sources, ROUTED: ""}.items():
        transport = TcpTransport(token, local, tls=tls, source=source)
        rails.append(Rail(name, "tcp", transport, transport))
    ranks = rail_ranks(topology, cards) if topology is not None else {}
    return TransferEngine(rails, ranks=ranks, home=home, rng=random.Random(str(local)))


def rail_ranks(topology: Topology, cards: Sequence[str]) -> RailRanks:
    """Of those `cards` that are up, for memory of every location."""
    ranks: dict[Location, list[list[RailName]]] = {}
    for location in (ANYWHERE, *topology.locations):
        named = ([nic.name for nic in group] for group in topology.ranked(location))
        groups = ([RailName(name) for name in names if name in cards] for names in named)
        ranks[Location(location)] = [group for group in groups if group]
    return ranks


def _address_of(card: str) -> str:
    address = ipv4_address(card)
    if not address:
        raise InvalidRequest(
            f"no network card {card[:64]!r} with an IPv4 address is here: see `ip -4 address`"
        )
    return address

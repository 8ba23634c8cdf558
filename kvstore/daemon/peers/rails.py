"""How this daemon reaches the pools of others."""

from __future__ import annotations

import os
from collections.abc import Sequence

from moontide.transfer import TlsEndpoint
from moontide.transfer.engine import Location, TransferEngine, tcp_engine
from moontide.transfer.errors import TransferError
from moontide.transfer.topology import read_topology
from moontide.transfer.types import Instance

from ...errors import InvalidRequest


def open_engine(
    token: str, local: Instance, *, cards: Sequence[str], tls: TlsEndpoint | None
) -> TransferEngine:
    """Over the named network cards, those nearest to this process's memory first; over whichever
    the kernel chooses when none is named or none works. Raises InvalidRequest."""
    if not cards:
        return tcp_engine(token.encode(), local, tls=tls)
    topology = read_topology()
    home = Location(topology.location_of(os.sched_getaffinity(0)))
    try:
        return tcp_engine(token.encode(), local, cards=cards, topology=topology, home=home, tls=tls)
    except TransferError as error:
        raise InvalidRequest(f"rails: {error}") from error

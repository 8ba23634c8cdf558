"""The daemon's account of itself: body of `GET /v1/stats` and source of its metrics."""

from __future__ import annotations

import dataclasses

import msgspec

from ...nvme import NvmeStats
from ...store import Stats
from ..counters import Counters, TransportCounters
from ..peers import PeerReport


class TransportStats(msgspec.Struct, frozen=True):
    """Raw bytes of layer extents into this node's DRAM and out of it; slices are extents."""

    bytes_in: int = 0
    bytes_out: int = 0
    slices_done: int = 0
    slices_failed: int = 0


class StoreReport(Stats, frozen=True, kw_only=True):
    """The store's stats and the daemon's own; counters grow from the start of the process."""

    connections: int
    draining: bool
    connection_bytes: int  # memory of the daemon's own for requests and replies under way
    client_processes: int
    event_streams: int
    connections_total: int
    requests: dict[str, int]  # by message type
    failures: dict[str, int]  # refused requests, by error code
    closed: dict[str, int]  # connections, by reason
    refused: dict[str, int]  # connections, by reason
    internal_errors: int
    transports: dict[str, TransportStats]  # between this node's DRAM and disk or other nodes
    peers: PeerReport | None  # None: this daemon looks for none
    nvme: NvmeStats | None  # what only this tier knows; None: there is none


def make_report(
    stats: Stats,
    counters: Counters,
    *,
    connections: int,
    client_processes: int,
    event_streams: int,
    transfers: TransportCounters,
    draining: bool,
    connection_bytes: int,
    peers: PeerReport | None,
    nvme: NvmeStats | None,
) -> StoreReport:
    return StoreReport(
        **msgspec.structs.asdict(stats),
        connections=connections,
        draining=draining,
        connection_bytes=connection_bytes,
        client_processes=client_processes,
        event_streams=event_streams,
        connections_total=counters.connections,
        requests=dict(counters.requests),
        failures=dict(counters.failures),
        closed=dict(counters.closed),
        refused=dict(counters.refused),
        internal_errors=counters.internal_errors,
        transports={
            name: TransportStats(**dataclasses.asdict(each))
            for name, each in (("tcp", transfers), ("file", counters.disk))
        },
        peers=peers,
        nvme=nvme,
    )

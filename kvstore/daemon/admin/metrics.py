"""The store's metrics in Prometheus text form, made from one report.

Labels come from small closed sets (tier, result, message type, error code, reason), never from a
key or a peer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from moontide.transfer.engine import BOUNDS_SECONDS, Latency

from ...nvme import NvmeStats
from ..peers import PeerReport
from .report import StoreReport

_PREFIX = "moontide_store_"

_TIER_GAUGES = {
    "capacity_bytes": ("capacity_bytes", "Size of the tier"),
    "used_bytes": ("used_bytes", "Bytes that live entries occupy"),
    "pinned_bytes": ("pinned_bytes", "Bytes that pins hold"),
    "reserved_bytes": ("reserved_bytes", "Bytes of entries being written"),
    "quarantined_bytes": ("quarantined_bytes", "Bytes of aborted writes not surely stopped"),
    "largest_free_bytes": ("largest_free_bytes", "Largest contiguous free span"),
    "entries": ("entries", "Committed entries"),
    "flushed": ("flushed_entries", "Entries that the end of the process does not take"),
}
_TIER_COUNTERS = {
    "evictions": ("evictions", "Entries dropped to free space"),
    "evicted_unflushed": ("unflushed_evictions", "Evicted entries that no colder tier held"),
    "expirations": ("expirations", "Entries whose TTL ended"),
    "removals": ("removals", "Entries removed by users"),
    "bytes_in": ("written_bytes", "Bytes committed"),
    "bytes_out": ("read_bytes", "Bytes that clients read"),
    "corrupt": ("corrupt_entries", "Entries dropped for wrong bytes"),
    "disk_errors": ("disk_errors", "Failed disk operations"),
}
_GAUGES = {
    "pins": ("pins", "Pins held, one a holder and entry"),
    "tickets": ("tickets", "Views and tickets"),
    "in_flight": ("reservations", "Entries being written"),
    "fills": ("fills", "Entries coming from disk or other nodes"),
    "request_scoped": ("request_scoped_blocks", "Blocks that one request keeps for itself"),
    "quarantined": ("quarantined_reservations", "Aborted writes not surely stopped"),
    "namespaces": ("namespaces", "Namespaces opened"),
    "hbm_blocks": ("hbm_blocks", "Blocks that engines say they hold"),
    "connections": ("connections", "Open connections"),
    "connection_bytes": (
        "connection_bytes",
        "Memory of the daemon's own for requests and replies under way",
    ),
    "client_processes": ("client_processes", "Client processes attached"),
    "event_streams": ("event_streams", "Readers of KV events"),
    "draining": ("draining", "1 while no writes are taken"),
    "uptime_s": ("uptime_seconds", "Time since start"),
}
_COUNTERS = {
    "refused_puts": ("refused_puts", "Writes refused for lack of room"),
    "not_admitted": ("unadmitted_entries", "Offered blocks that store admission turned away"),
    "double_releases": ("double_releases", "Releases of pins not held"),
    "stale_notices": ("stale_notices", "Notices about unknown or finished writes"),
    "events_seq": ("kv_events", "KV events published"),
    "connections_total": ("accepted_connections", "Connections accepted"),
    "internal_errors": ("internal_errors", "Requests that met an error of ours"),
}
_LABELLED_COUNTERS = {
    "requests": ("requests", "type", "Requests by message type"),
    "failures": ("request_failures", "code", "Refused requests by error code"),
    "closed": ("closed_connections", "reason", "Connections ended by reason"),
    "refused": ("refused_connections", "reason", "Connections refused by reason"),
}
_TRANSPORT_COUNTERS = {
    "bytes_in": ("transport_received_bytes", "Bytes brought into this node's DRAM"),
    "bytes_out": ("transport_sent_bytes", "Bytes taken from this node's DRAM"),
    "slices_done": ("transport_slices", "Layer extents moved"),
    "slices_failed": ("transport_failed_slices", "Layer extents that did not come"),
}


def render(report: StoreReport) -> bytes:
    """Prometheus text exposition format 0.0.4."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_ReportCollector(report))
    return generate_latest(registry)


class _ReportCollector(Collector):
    def __init__(self, report: StoreReport) -> None:
        self._report = report

    def collect(self) -> Iterator[Metric]:
        yield from self._tiers()
        for field, (name, text) in _GAUGES.items():
            yield GaugeMetricFamily(_PREFIX + name, text, value=getattr(self._report, field))
        for field, (name, text) in _COUNTERS.items():
            yield CounterMetricFamily(_PREFIX + name, text, value=getattr(self._report, field))
        for field, (name, label, text) in _LABELLED_COUNTERS.items():
            yield _labelled(name, label, text, getattr(self._report, field))
        for field, (name, text) in _TRANSPORT_COUNTERS.items():
            transports = self._report.transports.items()
            values = {transport: getattr(stats, field) for transport, stats in transports}
            yield _labelled(name, "transport", text, values)
        yield self._segments()
        if self._report.peers is not None:
            yield from _peers(self._report.peers)
        if self._report.nvme is not None:
            yield from _nvme(self._report.nvme)

    def _tiers(self) -> Iterator[Metric]:
        tiers = self._report.tiers
        for field, (name, text) in _TIER_GAUGES.items():
            gauge = GaugeMetricFamily(_PREFIX + name, text, labels=["tier"])
            for tier, stats in tiers.items():
                gauge.add_metric([tier], getattr(stats, field))
            yield gauge
        for field, (name, text) in _TIER_COUNTERS.items():
            values = {tier: getattr(stats, field) for tier, stats in tiers.items()}
            yield _labelled(name, "tier", text, values)
        lookups = CounterMetricFamily(
            _PREFIX + "lookups", "Entries looked up", labels=["tier", "result"]
        )
        for tier, stats in tiers.items():
            lookups.add_metric([tier, "hit"], stats.hits)
            lookups.add_metric([tier, "miss"], stats.misses)
        yield lookups

    def _segments(self) -> Metric:
        report = self._report
        gauge = GaugeMetricFamily(_PREFIX + "segments", "Segments by use", labels=["use"])
        shared = report.segments - report.segments_granted - report.segments_orphaned
        for use, count in (
            ("granted", report.segments_granted),
            ("orphaned", report.segments_orphaned),
            ("free", report.segments_free),
            ("daemon", shared - report.segments_free),
        ):
            gauge.add_metric([use], count)
        return gauge


def _peers(report: PeerReport) -> Iterator[Metric]:
    gauge = GaugeMetricFamily(_PREFIX + "peers", "Other stores of the cluster", labels=["state"])
    gauge.add_metric(["up"], len(report.up) - len(report.unreadable))
    gauge.add_metric(["unreadable"], len(report.unreadable))
    gauge.add_metric(["away"], len(report.known) - len(report.up))
    yield gauge
    values = {
        "filled": report.filled_entries,
        "failed": report.failed_entries,
        "dropped": report.dropped_entries,
    }
    yield _labelled("peer_fills", "result", "Entries that were to come from peers", values)
    yield _transfers(report.transfers)
    yield CounterMetricFamily(
        _PREFIX + "peer_corrupt_extents",
        "Layer extents that came with other bytes than their checksum",
        value=report.corrupt_extents,
    )


def _transfers(latencies: Iterable[Latency]) -> Metric:
    histogram = HistogramMetricFamily(
        _PREFIX + "transfer_seconds",
        "From asking for slices of peers' pools to their end",
        labels=["transport", "opcode", "result"],
    )
    for each in latencies:
        ends = [*map(str, BOUNDS_SECONDS), "+Inf"]
        buckets = list(zip(ends, accumulate(each.counts), strict=False))
        labels = [each.transport, each.opcode, each.result]
        histogram.add_metric(labels, buckets, each.total_seconds)
    return histogram


def _nvme(stats: NvmeStats) -> Iterator[Metric]:
    for name, text, count in (
        ("nvme_written_bytes", "Bytes written to NVMe, headers included", stats.bytes_written),
        ("nvme_reinserted_entries", "Entries in use, written anew", stats.reinserted),
        ("nvme_put_off_writes", "Times the write budget was used up", stats.writes_put_off),
    ):
        yield CounterMetricFamily(_PREFIX + name, text, value=count)
    yield GaugeMetricFamily(
        _PREFIX + "nvme_written_today_bytes",
        "Of the daily write budget, since midnight UTC",
        value=stats.bytes_written_today,
    )


def _labelled(name: str, label: str, text: str, values: Mapping[str, int]) -> Metric:
    counter = CounterMetricFamily(_PREFIX + name, text, labels=[label])
    for value, count in values.items():
        counter.add_metric([value], count)
    return counter

"""Metric names are a promise to dashboards: their form, their units, their labels."""

from __future__ import annotations

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from moontide.kvstore.daemon.admin.metrics import render
from moontide.kvstore.daemon.admin.report import StoreReport, make_report
from moontide.kvstore.daemon.counters import Counters, TransportCounters
from moontide.kvstore.daemon.peers import PeerReport
from moontide.kvstore.store import Stats, TierStats
from moontide.transfer.engine import Latencies
from moontide.transfer.types import Opcode, SliceState, SliceStatus

LABELS = {"tier", "transport", "opcode", "result", "type", "code", "reason", "use", "state", "le"}
PEER_COUNTS = set(PeerReport.__struct_fields__) - {
    "known",
    "up",
    "unreadable",
    "transfers",
    "remote_copies",
}
DONE = SliceStatus(SliceState.DONE)
NOT_UNITS = re.compile(r"_(ms|us|seconds_total|kb|mb|gb|minutes|percent)$")


@pytest.fixture
def report() -> StoreReport:
    stats = Stats(
        instance="n/1/00",
        tiers={"dram": TierStats(capacity_bytes=1024, hits=3, misses=2)},
        **dict.fromkeys(set(Stats.__struct_fields__) - {"instance", "tiers", "uptime_s"}, 1),
        uptime_s=1.5,
    )
    counters = Counters(connections=7)
    counters.requests["Get"] += 5
    counters.failures["busy"] += 1
    counters.closed["stalled"] += 1
    counters.refused["clients"] += 1
    latencies = Latencies()
    latencies.add("tcp", Opcode.READ, [DONE, DONE], 0.002)
    latencies.add("tcp", Opcode.READ, [DONE], 100.0)
    peers = PeerReport(
        known=["b", "c", "d"],
        up=["b", "c"],
        unreadable=["c"],
        transfers=latencies.report(),
        **dict.fromkeys(PEER_COUNTS, 1),
    )
    return make_report(
        stats,
        counters,
        connections=2,
        client_processes=1,
        event_streams=0,
        transfers=TransportCounters(bytes_in=11),
        draining=False,
        connection_bytes=0,
        peers=peers,
        nvme=None,
    )


def test_every_name_follows_the_house_style(report: StoreReport) -> None:
    families = list(text_string_to_metric_families(render(report).decode()))
    assert len(families) > 30
    for family in families:
        assert re.fullmatch(r"moontide_store_[a-z]+(_[a-z]+)*", family.name), family.name
        assert not NOT_UNITS.search(family.name), family.name
        assert family.documentation
        assert family.samples, family.name
        for sample in family.samples:
            assert set(sample.labels) <= LABELS, sample
            if family.type == "counter":
                assert sample.name == family.name + "_total"


def test_values_are_the_reports(report: StoreReport) -> None:
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(render(report).decode())
        for sample in family.samples
    }
    assert samples["moontide_store_capacity_bytes", "dram"] == 1024
    assert samples["moontide_store_lookups_total", "dram", "hit"] == 3
    assert samples["moontide_store_lookups_total", "dram", "miss"] == 2
    assert samples["moontide_store_requests_total", "Get"] == 5
    assert samples["moontide_store_request_failures_total", "busy"] == 1
    assert samples["moontide_store_closed_connections_total", "stalled"] == 1
    assert samples["moontide_store_connections",] == 2
    assert samples["moontide_store_transport_received_bytes_total", "tcp"] == 11
    for state in ("up", "unreadable", "away"):
        assert samples["moontide_store_peers", state] == 1


def test_latencies_are_a_histogram(report: StoreReport) -> None:
    families = text_string_to_metric_families(render(report).decode())
    [family] = [each for each in families if each.name == "moontide_store_transfer_seconds"]
    buckets = {s.labels["le"]: s.value for s in family.samples if s.name.endswith("_bucket")}
    assert (buckets["0.001"], buckets["0.0032"], buckets["10.0"], buckets["+Inf"]) == (0, 2, 2, 3)
    [total] = [s for s in family.samples if s.name.endswith("_sum")]
    assert total.value == pytest.approx(100.004)
    assert total.labels == {"transport": "tcp", "opcode": "read", "result": "done"}

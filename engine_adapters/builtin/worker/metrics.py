"""Prometheus metrics of a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..engine.stats import EngineStats

_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


class _EngineCollector(Collector):
    def __init__(self, stats: Callable[[], EngineStats]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        store = stats.store
        gauges = {
            "requests_running": stats.running,
            "requests_loading": stats.loading,
            "requests_waiting": stats.waiting,
            "pages": stats.pages,
            "pages_referenced": stats.pages_referenced,
            "pages_idle": stats.pages_idle,
            "staging_bytes": store.staging_bytes,
            "store_jobs": store.outstanding_jobs,
            "tickets": store.tickets,
        }
        counters = {
            "steps": stats.steps,
            "preemptions": stats.preemptions,
            "prompt_tokens": stats.prompt_tokens,
            "cached_tokens": stats.cached_tokens,
            "output_tokens": stats.output_tokens,
            "recomputed_loads": stats.recomputed,
            "lookups": store.lookups,
            "lookups_unanswered": store.lookups_unanswered,
            "loads": store.loads,
            "loads_failed": store.loads_failed,
            "loaded_bytes": store.loaded_bytes,
            "stores": store.stores,
            "stores_given_up": store.stores_given_up,
            "stored_bytes": store.stored_bytes,
            "store_errors": store.errors,
            "breaker_opened": store.breaker_opened,
        }
        for name, value in gauges.items():
            yield GaugeMetricFamily(f"moontide_worker_{name}", name.replace("_", " "), value)
        for name, value in counters.items():
            yield CounterMetricFamily(f"moontide_worker_{name}", name.replace("_", " "), value)
        finished = CounterMetricFamily(
            "moontide_worker_requests", "requests that ended", labels=["result"]
        )
        finished.add_metric(["finished"], stats.finished)
        finished.add_metric(["aborted"], stats.aborted)
        yield finished


class WorkerMetrics:
    """Event loop only."""

    def __init__(self, stats: Callable[[], EngineStats]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(stats))
        self._ttft = Histogram(
            "moontide_worker_ttft_seconds",
            "arrival to first token",
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._tbt = Histogram(
            "moontide_worker_tbt_seconds",
            "gap between tokens",
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._refused = Counter(
            "moontide_worker_requests_refused",
            "requests refused at arrival",
            ["reason"],
            registry=self._registry,
        )

    def first_token(self, seconds: float) -> None:
        self._ttft.observe(seconds)

    def next_token(self, seconds: float) -> None:
        self._tbt.observe(seconds)

    def refused(self, code: str) -> None:
        self._refused.labels(code).inc()

    def render(self) -> bytes:
        return generate_latest(self._registry)

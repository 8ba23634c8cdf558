"""Prometheus metrics of a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..engine.stats import EngineStats

_Values = Mapping[str, tuple[float, str]]
"""By a metric's name: its value, and what it is."""
_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


class _EngineCollector(Collector):
    def __init__(self, stats: Callable[[], EngineStats]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        for name, (value, text) in _gauges(stats).items():
            yield GaugeMetricFamily(f"moontide_worker_{name}", text, value)
        for name, (value, text) in _counters(stats).items():
            yield CounterMetricFamily(f"moontide_worker_{name}", text, value)
        finished = CounterMetricFamily(
            "moontide_worker_requests", "requests that ended", labels=["result"]
        )
        finished.add_metric(["finished"], stats.finished)
        finished.add_metric(["aborted"], stats.aborted)
        yield finished


def _gauges(stats: EngineStats) -> _Values:
    store = stats.store
    return {
        "requests_running": (stats.running, "requests in the batch"),
        "requests_loading": (stats.loading, "requests whose KV comes from the store"),
        "requests_waiting": (stats.waiting, "requests that wait for their turn"),
        "pages": (stats.pages, "pages of the KV pool"),
        "pages_referenced": (stats.pages_referenced, "pages that requests hold"),
        "pages_idle": (stats.pages_idle, "pages kept only to be found again"),
        "staging_bytes": (store.staging_bytes, "memory of blocks on their way"),
        "store_jobs": (store.outstanding_jobs, "jobs at the store under way"),
        "tickets": (store.tickets, "tickets that pin blocks in the store"),
        "prefill_tokens_per_second": (
            stats.speeds.prefill_tokens_per_s,
            "measured speed of a prompt's first tokens",
        ),
    }


def _counters(stats: EngineStats) -> _Values:
    store = stats.store
    return {
        "steps": (stats.steps, "steps of the engine"),
        "preemptions": (stats.preemptions, "requests put back for lack of pages"),
        "prompt_tokens": (stats.prompt_tokens, "tokens of prompts begun"),
        "cached_tokens": (stats.cached_tokens, "of these, tokens that were not computed"),
        "output_tokens": (stats.output_tokens, "tokens given"),
        "recomputed_loads": (stats.recomputed, "requests whose load failed or was late"),
        "lookups": (store.lookups, "questions to the store"),
        "lookups_unanswered": (store.lookups_unanswered, "of these, not answered in time"),
        "loads": (store.loads, "loads of blocks begun"),
        "loads_failed": (store.loads_failed, "of these, failed"),
        "loads_shortened": (store.loads_shortened, "loads of a part, the rest computed"),
        "loads_skipped": (store.loads_skipped, "requests that computed all that was found"),
        "loads_dropped": (store.loads_dropped, "loads given up, as computing was faster"),
        "load_estimated_seconds": (
            store.load_estimated_seconds,
            "time that whole loads were expected to take",
        ),
        "load_measured_seconds": (store.load_measured_seconds, "time that they took"),
        "load_error_seconds": (
            store.load_error_seconds,
            "differences between the two, without sign",
        ),
        "loaded_bytes": (store.loaded_bytes, "bytes that came from the store"),
        "stores": (store.stores, "stores of blocks begun"),
        "stores_given_up": (store.stores_given_up, "of these, given up"),
        "stored_bytes": (store.stored_bytes, "bytes that went to the store"),
        "store_errors": (store.errors, "errors of the store"),
        "breaker_opened": (store.breaker_opened, "times the store was left alone for a while"),
    }


class WorkerMetrics:
    """Event loop only."""

    def __init__(self, stats: Callable[[], EngineStats]) -> None:
        # Else a useless gauge more for every counter.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # theirs has no types
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

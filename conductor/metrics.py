"""Metrics of the Conductor; one registry a process."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_TOKENS = (0, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 32768)


class _Registry(CollectorRegistry):
    """Makes metrics under the Conductor's prefix, without a gauge more for every counter."""

    def __init__(self) -> None:
        super().__init__()
        disable_created_metrics()  # type: ignore[no-untyped-call]  # theirs has no types

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"moontide_conductor_{name}_total", text, labels, registry=self)

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"moontide_conductor_{name}", text, labels, registry=self)

    def histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(f"moontide_conductor_{name}", text, buckets=buckets, registry=self)


class Metrics:
    """Labels are small closed sets: never a worker, a model or a key."""

    def __init__(self) -> None:
        registry = self._registry = _Registry()
        self.requests = registry.counter("requests", "Requests ended", "endpoint", "result")
        self.open_requests = registry.gauge("open_requests", "Requests being answered")
        self.routed = registry.counter(
            "routed", "Requests whose worker gave a first token", "reason"
        )
        self.plans = registry.counter("plans", "The same by plan: colocated or split", "plan")
        self.worker_failures = registry.counter(
            "worker_failures",
            "Calls to a worker that came to nothing, by what it did of the plan",
            "cause",
            "part",
        )
        self.decode_repicks = registry.counter(
            "decode_repicks", "Decode workers replaced before the first token"
        )
        self.resumes = registry.counter(
            "resumes", "Answers taken up by another worker after their first token"
        )
        self.prompt_tokens = registry.counter(
            "prompt_tokens", "Prompt tokens of requests that ended well and were not resumed"
        )
        self.predicted_cached_tokens = registry.counter(
            "predicted_cached_tokens", "Of these, tokens the chosen worker was expected to have"
        )
        self.cached_tokens = registry.counter(
            "cached_tokens", "Of these, tokens the worker really reused"
        )
        self.prediction_error = registry.histogram(
            "prediction_error_tokens",
            "Difference between predicted and actual cached tokens of a request",
            _TOKENS,
        )
        self.ttft = registry.histogram("ttft_seconds", "Arrival to first token", _SECONDS)
        self.tokenise = registry.histogram(
            "tokenise_seconds",
            "Rendering, tokenising and hashing one prompt, waiting included",
            _SECONDS,
        )
        self.workers = registry.gauge("workers", "Registered workers by health", "health")
        self.silent_workers = registry.gauge(
            "workers_without_events", "Registered workers whose node tells no KV events"
        )
        self.index_blocks = registry.gauge("index_blocks", "Blocks the prefix index knows")
        self.index_skipped = registry.gauge(
            "index_skipped_blocks", "Blocks left out since the last snapshots: the index is full"
        )
        self.resyncs = registry.gauge("event_resyncs", "Gaps met in the event streams being read")

    def text(self) -> bytes:
        """Prometheus exposition."""
        return generate_latest(self._registry)

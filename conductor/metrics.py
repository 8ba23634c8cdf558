"""Metrics of the Conductor; one registry a process."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_TOKENS = (0, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 32768)


class Metrics:
    """Labels are small closed sets: never a worker, a model or a key."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        prefix = "moontide_conductor_"
        self.requests = Counter(
            prefix + "requests_total",
            "Requests ended",
            ["endpoint", "result"],
            registry=registry,
        )
        self.open_requests = Gauge(
            prefix + "open_requests", "Requests being answered", registry=registry
        )
        self.routed = Counter(
            prefix + "routed_total", "Requests sent to a worker", ["reason"], registry=registry
        )
        self.retries = Counter(
            prefix + "worker_failures_total",
            "Calls to a worker that came to nothing",
            ["cause"],
            registry=registry,
        )
        self.prompt_tokens = Counter(
            prefix + "prompt_tokens_total", "Prompt tokens of ended requests", registry=registry
        )
        self.predicted_cached_tokens = Counter(
            prefix + "predicted_cached_tokens_total",
            "Prompt tokens the chosen worker was expected to have",
            registry=registry,
        )
        self.cached_tokens = Counter(
            prefix + "cached_tokens_total",
            "Prompt tokens the worker really reused",
            registry=registry,
        )
        self.prediction_error = Histogram(
            prefix + "prediction_error_tokens",
            "Difference between predicted and actual cached tokens of a request",
            buckets=_TOKENS,
            registry=registry,
        )
        self.ttft = Histogram(
            prefix + "ttft_seconds", "Arrival to first token", buckets=_SECONDS, registry=registry
        )
        self.tokenise = Histogram(
            prefix + "tokenise_seconds",
            "Rendering, tokenising and hashing one prompt, waiting included",
            buckets=_SECONDS,
            registry=registry,
        )
        self.workers = Gauge(
            prefix + "workers", "Registered workers by health", ["health"], registry=registry
        )
        self.silent_workers = Gauge(
            prefix + "workers_without_events",
            "Registered workers whose node tells no KV events",
            registry=registry,
        )
        self.index_blocks = Gauge(
            prefix + "index_blocks", "Blocks the prefix index knows", registry=registry
        )
        self.index_skipped = Gauge(
            prefix + "index_skipped_blocks",
            "Blocks left out of the index since its last snapshots: it was full",
            registry=registry,
        )
        self.resyncs = Gauge(
            prefix + "event_resyncs", "Gaps met in the event streams being read", registry=registry
        )

    def text(self) -> bytes:
        return generate_latest(self.registry)

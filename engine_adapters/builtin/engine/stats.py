"""What an engine has done and what it holds."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Totals:
    """Since the start; the engine thread counts."""

    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    finished: int = 0
    aborted: int = 0
    recomputed: int = 0  # loads that failed and were made up for


@dataclass(frozen=True, slots=True)
class StoreCounters:
    """Since the start, except for what is outstanding now."""

    lookups: int = 0
    lookups_unanswered: int = 0
    loads: int = 0
    loads_failed: int = 0
    loaded_bytes: int = 0
    loads_shortened: int = 0  # found blocks were computed after the last that was loaded
    loads_skipped: int = 0  # nothing of what was found was loaded
    loads_dropped: int = 0  # given up on the way: computing was faster
    load_estimated_seconds: float = 0.0  # of whole loads, their sum
    load_measured_seconds: float = 0.0  # of the same
    load_error_seconds: float = 0.0  # of each estimate, without sign
    stores: int = 0
    stores_given_up: int = 0
    stored_bytes: int = 0
    errors: int = 0
    breaker_opened: int = 0
    outstanding_jobs: int = 0
    pending_lookups: int = 0
    tickets: int = 0
    staging_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Speeds:
    """What loads and prefills are expected to take."""

    prefill_tokens_per_s: float = 0.0  # of a prompt's first tokens
    load_bytes_per_s: dict[str, float] = field(default_factory=dict)  # by source


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """A snapshot taken between two steps. The first half is what is held now."""

    running: int = 0
    loading: int = 0  # pages reserved, being filled in the background
    waiting: int = 0
    pages: int
    pages_referenced: int = 0
    pages_idle: int = 0
    preemptions: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    finished: int = 0
    aborted: int = 0
    recomputed: int = 0
    store: StoreCounters = field(default_factory=StoreCounters)
    speeds: Speeds = field(default_factory=Speeds)

"""What a decision is made from, and what it says."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass


class Role(enum.StrEnum):
    """What a worker is offered for. Any worker can compute anything."""

    PREFILL = "prefill"
    DECODE = "decode"
    BOTH = "both"


class Exclusion(enum.StrEnum):
    """Why a worker was left out."""

    UNREACHABLE = "unreachable"
    NOT_READY = "not_ready"  # answers, but takes no work: starting or draining
    MISMATCH = "mismatch"  # tokenizer or namespace differs from what the request needs
    FULL = "full"  # as many open requests as it may have
    SLOW_TOKENS = "slow_tokens"  # its time between tokens already breaks the objective
    TRIED = "tried"  # this request was there and came back


class Reason(enum.StrEnum):
    """Why the plan was chosen."""

    ONLY = "only"  # there was no other
    PREFIX = "prefix"  # none holds more of the prompt
    SPILL = "spill"  # another holds more, but waiting there costs more than it saves
    LOAD = "load"  # none holds anything: least estimated wait
    FALLBACK = "fallback"  # no usable worker had the role: one of another role takes it
    RESUME = "resume"  # takes over what a lost worker had begun
    FORCED = "forced"  # the client named the worker


@dataclass(frozen=True, slots=True)
class Speeds:
    """What a worker was measured to do; defaults stand until it was."""

    prefill_tokens_per_s: float = 500.0
    dram_tokens_per_s: float = 10_000.0  # copied from the node's own pool
    nvme_tokens_per_s: float = 5_000.0
    remote_tokens_per_s: float = 5_000.0  # from another node's store
    request_seconds: float = 2.0  # first token to last
    token_seconds: float = 0.0  # between tokens of one request; 0: not measured

    def load_seconds(self, cached: Mapping[str, int], most: int) -> float:
        """To bring at most `most` leading tokens of `cached` (tier → tokens) into the device."""
        seconds, left = 0.0, most - cached.get("hbm", 0)
        for tier, speed in (
            ("dram", self.dram_tokens_per_s),
            ("nvme", self.nvme_tokens_per_s),
            ("remote", self.remote_tokens_per_s),
        ):
            taken = max(0, min(cached.get(tier, 0), left))
            seconds += taken / speed
            left -= taken
        return seconds


@dataclass(frozen=True, slots=True)
class Candidate:
    """One worker as the decision sees it. `cached` counts leading prompt tokens by tier: its own
    `hbm`, then its node's `dram` and `nvme`, then `remote`, held only by other nodes' stores."""

    id: str
    role: Role
    excluded: Exclusion | None
    open_requests: int
    max_running: int
    pending_tokens: int  # prompt tokens not yet computed of its open requests
    cached: Mapping[str, int]  # for this request
    store: str  # instance of its node's store; empty: none lives, so it hands nothing over
    speeds: Speeds = Speeds()

    @property
    def cached_tokens(self) -> int:
        return sum(self.cached.values())

    @property
    def own_tokens(self) -> int:
        """Of these, what no other node has to send."""
        return self.cached_tokens - self.cached.get("remote", 0)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a decision depends on."""

    prompt_tokens: int
    max_tokens: int
    candidates: tuple[Candidate, ...]
    ttft_limit_s: float | None = None

    @property
    def usable(self) -> list[Candidate]:
        return [c for c in self.candidates if c.excluded is None]


@dataclass(frozen=True, slots=True)
class Estimate:
    """The terms of one plan's estimated TTFT. A plan is colocated (`prefill_worker` is None:
    `worker` does all) or split: `prefill_worker` computes the prompt, `worker` decodes."""

    worker: str
    prefill_worker: str | None
    cached: Mapping[str, int]  # at the worker that prefills: leading prompt tokens by tier
    cached_tokens: int  # of these, what it need not compute
    queue_seconds: float
    load_seconds: float
    prefill_seconds: float
    handoff_seconds: float

    @property
    def ttft_seconds(self) -> float:
        return self.queue_seconds + self.load_seconds + self.prefill_seconds + self.handoff_seconds


@dataclass(frozen=True, slots=True)
class Choice:
    """The plan to follow; `estimates` has every possible one, best first."""

    plan: Estimate
    reason: Reason
    estimates: tuple[Estimate, ...]

    @property
    def worker(self) -> str:
        return self.plan.worker

    @property
    def prefill_worker(self) -> str | None:
        return self.plan.prefill_worker

    @property
    def cached_tokens(self) -> int:
        return self.plan.cached_tokens


@dataclass(frozen=True, slots=True)
class Refusal:
    """Nobody may take the request now. `overloaded`: somebody could, later, as far as is known."""

    overloaded: bool
    message: str
    retry_after_s: float
    estimates: tuple[Estimate, ...] = ()

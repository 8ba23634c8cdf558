"""One request as the engine sees it: its tokens, its pages and how far it has come.

LOOKUP ──store answered, or its time was up──► WAITING ──admitted───────────► RUNNING ──► FINISHED
   ▲                                              │ admitted, to be filled      ▲  │
   │                                              ▼ beside the running batch    │  │
   │                                           LOADING ──whole, or given up on──┘  │
   │                                              │ (hand-off: and token 1 came)   │
   └──────────── preempted (pages ran out) ───────┴────────────────────────────────┘
A hand-off that is received begins in WAITING, and goes back there when preempted in LOADING.
FINISHED is reached from every state by an abort.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from moontide.kvstore import BlockKey, Tier

from ..model import Sampling

FinishReason = Literal["stop", "length", "abort", "error"]


class Phase(enum.Enum):
    LOOKUP = "lookup"
    WAITING = "waiting"
    LOADING = "loading"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Source:
    """Where a stored block's bytes come from."""

    tier: Tier
    transport: str  # how they reach this node's DRAM: shm (they lie there), file, tcp
    peer: str = ""  # node that has them, if it is another

    @property
    def is_local(self) -> bool:
        return self.transport != "tcp"

    def __str__(self) -> str:
        return f"{self.tier}/{self.transport}" + (f"/{self.peer}" if self.peer else "")


@dataclass(frozen=True, slots=True)
class Found:
    """Consecutive blocks of a sequence that the store has or is being given."""

    first_block: int
    sources: tuple[Source, ...]  # one a block
    at: float = 0.0  # when the store said so (monotonic): what comes from elsewhere comes since

    @property
    def stop(self) -> int:
        return self.first_block + len(self.sources)

    def source(self, block: int) -> Source:
        return self.sources[block - self.first_block]


@dataclass(frozen=True, slots=True)
class SendHandoff:
    """Ends with token 1; `key` is the request-scoped block for what is beyond the last full one."""

    key: BlockKey


@dataclass(frozen=True, slots=True)
class ReceiveHandoff:
    """Its prompt is computed elsewhere and comes from `store_instance`; token 1 is told."""

    key: BlockKey
    store_instance: str


Handoff = SendHandoff | ReceiveHandoff


@dataclass(frozen=True, slots=True)
class LoadEstimate:
    """Of the blocks that are loaded: what that takes, and what computing them would."""

    load_s: float
    recompute_s: float


@dataclass(slots=True)
class Reuse:
    """Where the prompt's KV came from, for `usage` and the evidence counters. Times are unix
    seconds, set once."""

    hbm_tokens: int = 0
    loaded_tokens: Counter[Tier] = field(default_factory=Counter)
    bytes_by_tier: Counter[Tier] = field(default_factory=Counter)
    bytes_by_transport: Counter[str] = field(default_factory=Counter)
    first_layer_at: float | None = None
    last_layer_at: float | None = None
    prefill_end_at: float | None = None
    recomputed: bool = False  # a promised load failed

    @property
    def dram_tokens(self) -> int:
        return self.loaded_tokens[Tier.DRAM]

    @property
    def nvme_tokens(self) -> int:
        return self.loaded_tokens[Tier.NVME]

    @property
    def cached_tokens(self) -> int:
        return self.hbm_tokens + self.loaded_tokens.total()

    @property
    def loaded_bytes(self) -> int:
        return self.bytes_by_tier.total()

    def add_bytes(self, source: Source, num_bytes: int) -> None:
        self.bytes_by_tier[source.tier] += num_bytes
        self.bytes_by_transport[source.transport] += num_bytes


@dataclass(slots=True, eq=False)
class Sequence:
    """Owned by the engine thread; the scheduler changes it, others read it."""

    sequence_id: int
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    handoff: Handoff | None = None
    token_ids: list[int] = field(default_factory=list)  # prompt and output
    phase: Phase = Phase.LOOKUP
    keys: list[BlockKey] = field(default_factory=list)  # of the leading full blocks
    pages: list[int] = field(default_factory=list)
    num_computed: int = 0  # leading tokens whose KV is in `pages`
    found: Found | None = None  # None: the store did not say
    loading: range | None = None  # blocks that are being filled in the background
    estimate: LoadEstimate | None = None  # of its load, if it has one that may be late
    first_token: int | None = None  # of a hand-off that is received, until it joins the batch
    stored_blocks: int = 0  # leading blocks the store has or is being given
    reuse: Reuse = field(default_factory=Reuse)

    def __post_init__(self) -> None:
        self.token_ids = list(self.prompt_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - len(self.prompt_ids)

    @property
    def is_decoding(self) -> bool:
        return self.num_output > 0 and self.num_tokens - self.num_computed == 1

    @property
    def is_received(self) -> bool:
        return isinstance(self.handoff, ReceiveHandoff)

"""One request as the engine sees it: its tokens, its pages and how far it has come.

LOOKUP ──store answered or its deadline passed──► WAITING ──admitted──► RUNNING ──► FINISHED
   ▲                                                                      │
   └────────────────────── preempted (pages ran out) ─────────────────────┘
FINISHED is reached from every state by an abort.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Literal

from moontide.kvstore import BlockKey

from ..model import Sampling

FinishReason = Literal["stop", "length", "abort", "error"]


class Phase(enum.Enum):
    LOOKUP = "lookup"
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True)
class Reuse:
    """Where the prompt's KV came from, for `usage` and the evidence counters. Times are unix
    seconds, set once."""

    hbm_tokens: int = 0
    dram_tokens: int = 0
    loaded_bytes: int = 0
    first_layer_at: float | None = None
    last_layer_at: float | None = None
    prefill_end_at: float | None = None
    recomputed: bool = False  # a promised load failed

    @property
    def cached_tokens(self) -> int:
        return self.hbm_tokens + self.dram_tokens


@dataclass(slots=True, eq=False)
class Sequence:
    """Owned by the engine thread; the scheduler changes it, others read it."""

    sequence_id: int
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    token_ids: list[int] = field(default_factory=list)  # prompt and output
    phase: Phase = Phase.LOOKUP
    keys: list[BlockKey] = field(default_factory=list)  # of the leading full blocks
    pages: list[int] = field(default_factory=list)
    num_computed: int = 0  # leading tokens whose KV is in `pages`
    found_blocks: int | None = None  # leading blocks the store has; None: it did not say
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

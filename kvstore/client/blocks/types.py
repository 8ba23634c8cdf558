"""What an engine submits and polls: jobs, their results, and what a lookup found."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NewType

from ...keys import BlockKey
from ...types import ReserveStatus, Tier
from .located import LocatedBlocks

if TYPE_CHECKING:
    from .store_job import StoreJob

JobId = NewType("JobId", int)
"""Unique within one client, never used again."""


class JobStatus(enum.StrEnum):
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"


@dataclass(frozen=True, slots=True)
class Ticket:
    """The pin that a lookup took, and where the blocks lie. Any client of the same daemon in this
    process may load with it. `id` (empty: nothing is pinned) travels further: who has it may renew
    or release the pin. A load with a ticket that has expired still gives the right bytes or names
    the block as failed."""

    id: bytes
    ttl_s: float
    located: LocatedBlocks = field(repr=False)


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """The longest prefix that is there, or on its way here: a load waits for what is. One entry a
    block: in `tiers` the tier its bytes come from, in `transports` the way ("shm": it lay in this
    node's DRAM; else "file" or "tcp"), in `peers` the node that has it, if it is another. Of a
    fetch, `blocks` ends with the request's own block, which `num_tokens` does not count."""

    num_tokens: int
    blocks: tuple[BlockKey, ...]
    tiers: tuple[Tier, ...]
    transports: tuple[str, ...]
    peers: tuple[str, ...]
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class JobResult:
    """Terminal state of a job, delivered once; only DONE means that everything asked for happened.

    `failed_blocks` are positions of blocks in the prompt, ascending: of a load, those whose bytes
    must not be used; of a store, those that were not stored (a full pool is DONE with failed
    blocks). `hit` belongs to a lookup or fetch that is DONE. `ended_at` is when it came to its end
    (monotonic seconds), which can be long before it is polled."""

    job: JobId
    status: JobStatus
    failed_blocks: tuple[int, ...] = ()
    reason: str = ""
    hit: PrefixHit | None = None
    ended_at: float = 0.0


class StoreHandle:
    """A store under way, from `begin_store` to its one result (after commit, abort or deadline)
    under `job`. `statuses` is None until the daemon has answered, then one a block."""

    __slots__ = ("_running", "first_block", "job", "keys", "next_layer", "num_layers", "statuses")

    def __init__(
        self, job: JobId, keys: Sequence[BlockKey], *, first_block: int, num_layers: int
    ) -> None:
        self.job = job
        self.keys = tuple(keys)
        self.first_block = first_block
        self.num_layers = num_layers
        self.next_layer = 0  # submit_store takes layers in order
        self.statuses: tuple[ReserveStatus, ...] | None = None
        self._running: StoreJob | None = None

    @property
    def num_blocks(self) -> int:
        return len(self.keys)

    def attach(self, job: StoreJob) -> None:
        """Inside the client: the job that does it."""
        self._running = job

    @property
    def running(self) -> StoreJob:
        assert self._running is not None
        return self._running

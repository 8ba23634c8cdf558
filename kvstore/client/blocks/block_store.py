"""`client.kv(...)`: KV blocks of one namespace.

Engines use `submit_*`, `begin_store`, `commit`, … and `poll` (polled_store.py): none of them
blocks; readiness comes by `fileno()`. Scripts and tests use `lookup`, `load`, `reader` and
`writer`, which wait for the same jobs.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...keys import Extra, Namespace, TokenIds
from ...layout import Shard
from ..connections.channel import Channel
from ..deadline import Deadline
from ..put_options import check_replicas
from .block_jobs import BlockJobs
from .desk import JobDesk, hit_of
from .located import Coverage
from .polled_store import PolledBlockStore
from .streams import BlockReader, BlockWriter
from .types import JobResult, PrefixHit, Ticket

if TYPE_CHECKING:
    from typing_extensions import Buffer


class BlockStore(PolledBlockStore):
    """As PolledBlockStore, and calls that wait, at most `timeout_s` seconds."""

    def __init__(
        self,
        channel: Channel,
        namespace: Namespace,
        shards: Sequence[Shard],
        *,
        timeout_s: float,
        replicas: int = 1,
    ) -> None:
        check_replicas(replicas)
        coverage = Coverage(namespace, shards)  # refused before there is anything to close
        desk = JobDesk(channel, namespace)
        jobs = BlockJobs(desk, coverage)
        super().__init__(jobs, namespace, timeout_s, replicas)
        weakref.finalize(jobs, desk.abandon).atexit = False

    def lookup(
        self,
        token_ids: TokenIds,
        *,
        extra: Extra = (),
        pin_s: float | None = None,
        timeout_s: float | None = None,
    ) -> PrefixHit:
        """The longest prefix that is there, pinned for `pin_s` seconds (None: not at all)."""
        keys = self.keys(token_ids, extra=extra)
        make = self.jobs.lookup(keys, pin_s, pending=False)
        return hit_of(self.jobs.desk.run(make, self.limit(timeout_s)))

    def load(
        self,
        ticket: Ticket,
        layers: Sequence[int],
        destinations: Sequence[Sequence[Buffer]],
        *,
        blocks: Sequence[int] | None = None,
        timeout_s: float | None = None,
    ) -> JobResult:
        """As `submit_load`, waiting for the result, which names the blocks that failed."""
        make = self.jobs.load(ticket, layers, destinations, blocks)
        return self.jobs.desk.run(make, self.limit(timeout_s))

    def reader(
        self, token_ids: TokenIds, *, extra: Extra = (), timeout_s: float | None = None
    ) -> BlockReader:
        """Reads a prefix layer by layer, also while it is still being written."""
        keys = self.keys(token_ids, extra=extra)
        return BlockReader(self.jobs, keys, self.limit(timeout_s))

    def writer(
        self,
        token_ids: TokenIds,
        *,
        first_block: int = 0,
        extra: Extra = (),
        replicas: int | None = None,
        timeout_s: float | None = None,
    ) -> BlockWriter:
        """Writes blocks layer by layer: commit on a clean exit, abort on an error. `replicas` as in
        `begin_store`."""
        keys, wanted = self.keys(token_ids, extra=extra), self.wanted(replicas)
        return BlockWriter(self.jobs, keys, first_block, self.limit(timeout_s), replicas=wanted)

    # -- life -------------------------------------------------------------------------

    def open(self, deadline: Deadline) -> None:
        """Waits until the daemon knows the namespace; `client.kv` has done it."""
        self.jobs.desk.open(deadline)

    def close(self) -> None:
        """Cancels every job and waits for running copies. Idempotent."""
        self.jobs.desk.close()

    def __enter__(self) -> BlockStore:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

"""`client.kv(...)`: KV blocks of one namespace.

Engines use `submit_*`, `begin_store`, `commit`, … and `poll`: none of them blocks; readiness comes
by `fileno()`. Scripts and tests use `lookup`, `reader` and `writer`, which wait for the same jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ... import wire
from ...keys import BlockKey, Extra, Namespace, TokenIds, block_keys
from ...layout import Shard
from ..connections.channel import Channel
from ..deadline import Deadline, check_timeout
from .block_jobs import BlockJobs
from .desk import JobDesk, raise_unless_done
from .located import Coverage
from .streams import BlockReader, BlockWriter
from .types import JobId, JobResult, JobStatus, PrefixHit, StoreHandle, Ticket

if TYPE_CHECKING:
    from typing_extensions import Buffer


class BlockStore:
    """Thread-safe. `deadline_s` is in seconds from the call; a job is reported by then, unless a
    copy for it still runs. Block numbers count from the prompt's first block; layers are counted
    within the coverage (`Coverage.layers`). With too many jobs open, submitting raises Busy."""

    def __init__(
        self,
        channel: Channel,
        namespace: Namespace,
        shards: Sequence[Shard],
        *,
        timeout_s: float,
    ) -> None:
        self.namespace = namespace
        self.coverage = Coverage(namespace, shards)
        self._timeout_s = timeout_s
        self._desk = JobDesk(channel, namespace)
        self._jobs = BlockJobs(self._desk, self.coverage)

    @property
    def num_layers(self) -> int:
        return len(self.coverage.layers)

    def layer_bytes(self, layer: int) -> int:
        """Size of one block of one layer, as sources and destinations have it."""
        return self.coverage.layer_bytes(layer)

    def keys(self, token_ids: TokenIds, *, extra: Extra = ()) -> list[BlockKey]:
        """Keys of the full blocks of a prompt."""
        return block_keys(self.namespace, token_ids, extra=extra)

    # -- engines: nothing here blocks ---------------------------------------------------

    def submit_lookup(
        self, token_ids: TokenIds, *, extra: Extra = (), pin_s: float = 10.0, deadline_s: float
    ) -> JobId:
        """Finds the longest prefix that is there and pins it; the result carries `hit`."""
        make = self._jobs.lookup(self.keys(token_ids, extra=extra), pin_s, pending=False)
        return self._desk.submit(make(check_timeout(deadline_s), self._desk.deliver))

    def submit_load(
        self,
        ticket: Ticket,
        layers: Sequence[int],
        destinations: Sequence[Sequence[Buffer]],
        *,
        blocks: Sequence[int] | None = None,
        deadline_s: float,
    ) -> JobId:
        """`destinations[i][j]` receives layer `layers[i]` of block `blocks[j]` (None: every block
        of the hit), in canonical order. Leave them alone until the result."""
        make = self._jobs.load(ticket, layers, destinations, blocks)
        return self._desk.submit(make(check_timeout(deadline_s), self._desk.deliver))

    def begin_store(
        self,
        token_ids: TokenIds,
        *,
        first_block: int = 0,
        extra: Extra = (),
        deadline_s: float,
    ) -> StoreHandle:
        """Reserves space for the full blocks from `first_block` on. `deadline_s` bounds the whole
        store, up to its commit: what is not committed by then is given back."""
        keys = self.keys(token_ids, extra=extra)
        return self._jobs.begin_store(keys, first_block, deadline_s, self._desk.deliver)

    def submit_store(
        self,
        store: StoreHandle,
        layer: int,
        sources: Sequence[Buffer | None],
        *,
        deadline_s: float,
    ) -> JobId:
        """One source a block of the store, in canonical order; those of blocks that are not
        RESERVED are not read and may be None. Layers come in order. The sources must not change
        until the result; when that is not DONE, the whole store ends."""
        return self._jobs.store_layer(store, layer, sources, deadline_s, self._desk.deliver)

    def commit(self, store: StoreHandle) -> JobId:
        """Makes the blocks visible once every layer is there; the result comes under `store.job`.
        Raises InvalidRequest when layers were not submitted."""
        self._jobs.commit(store)
        return store.job

    def abort(self, store: StoreHandle) -> None:
        """Gives the space back; a store that has ended stays as it is."""
        self._jobs.abort(store)

    def cancel(self, job: JobId) -> None:
        """The job ends CANCELLED, or as it was about to. A finished or unknown one is no error."""
        self._desk.with_job(job, lambda known: known.stop(JobStatus.CANCELLED, "cancelled"))

    def renew(self, ticket: Ticket | bytes, *, ttl_s: float = 10.0) -> None:
        """Pins for `ttl_s` seconds from now. Of one that had expired, the next load tells."""
        self._desk.tell(wire.RenewTicket(_ticket_id(ticket), check_timeout(ttl_s)))

    def release(self, ticket: Ticket | bytes) -> None:
        """Ends the pin. The daemon refuses and counts a second release."""
        if ticket_id := _ticket_id(ticket):
            read_bytes = ticket.located.read_bytes if isinstance(ticket, Ticket) else 0
            self._desk.tell(wire.Unpin(ticket_id, read_bytes))

    def publish_hbm(
        self, stored_keys: Iterable[BlockKey], removed_keys: Iterable[BlockKey] = ()
    ) -> None:
        """Tells the cluster what this engine's own device cache gained and lost. Advisory; what is
        still held is published again after a reconnect."""
        self._desk.publish(list(stored_keys), list(removed_keys))

    def poll(self) -> list[JobResult]:
        """Results since the last poll."""
        return self._desk.poll()

    def fileno(self) -> int:
        """Readable while there are results to poll."""
        return self._desk.fileno()

    # -- scripts and tests: blocking ----------------------------------------------------

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
        make = self._jobs.lookup(keys, pin_s, pending=False)
        result = self._desk.run(make, self._limit(timeout_s))
        raise_unless_done(result)
        assert result.hit is not None
        return result.hit

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
        make = self._jobs.load(ticket, layers, destinations, blocks)
        return self._desk.run(make, self._limit(timeout_s))

    def reader(
        self, token_ids: TokenIds, *, extra: Extra = (), timeout_s: float | None = None
    ) -> BlockReader:
        """Reads a prefix layer by layer, also while it is still being written."""
        keys = self.keys(token_ids, extra=extra)
        return BlockReader(self._jobs, keys, self._limit(timeout_s))

    def writer(
        self,
        token_ids: TokenIds,
        *,
        first_block: int = 0,
        extra: Extra = (),
        timeout_s: float | None = None,
    ) -> BlockWriter:
        """Writes blocks layer by layer: commit on a clean exit, abort on an error."""
        keys = self.keys(token_ids, extra=extra)
        return BlockWriter(self._jobs, keys, first_block, self._limit(timeout_s))

    # -- life -------------------------------------------------------------------------

    def open(self, deadline: Deadline) -> None:
        """Waits until the daemon knows the namespace; `client.kv` has done it."""
        self._desk.open(deadline)

    def close(self) -> None:
        """Cancels every job and waits for running copies. Idempotent."""
        self._desk.close()

    def __enter__(self) -> BlockStore:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _limit(self, timeout_s: float | None) -> Deadline:
        return Deadline(self._timeout_s if timeout_s is None else timeout_s)


def _ticket_id(ticket: Ticket | bytes) -> bytes:
    return ticket.id if isinstance(ticket, Ticket) else ticket

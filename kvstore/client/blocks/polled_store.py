"""Submitting jobs on KV blocks and polling their results: nothing here blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ... import wire
from ...keys import BlockKey, Extra, Namespace, TokenIds, block_keys
from ..deadline import Deadline, check_timeout
from ..prefetching import PrefetchTier, check_tier, prefetch_blocks
from .block_jobs import BlockJobs
from .types import JobId, JobResult, JobStatus, StoreHandle, Ticket

if TYPE_CHECKING:
    from typing_extensions import Buffer


class PolledBlockStore:
    """Thread-safe. `deadline_s` is in seconds from the call; a job is reported by then, unless a
    copy for it still runs. Block numbers count from the prompt's first block; layers are counted
    within the coverage (`Coverage.layers`). With too many jobs open, submitting raises Busy."""

    def __init__(
        self, jobs: BlockJobs, namespace: Namespace, timeout_s: float, replicas: int
    ) -> None:
        self.jobs = jobs  # for the client's own use
        self.replicas = replicas  # of what is stored, unless a call says otherwise
        self.namespace = namespace
        self.coverage = jobs.coverage
        self.timeout_s = timeout_s  # the default limit of one call

    @property
    def num_layers(self) -> int:
        return len(self.coverage.layers)

    def layer_bytes(self, layer: int) -> int:
        """Size of one block of one layer, as sources and destinations have it."""
        return self.coverage.layer_bytes(layer)

    def keys(self, token_ids: TokenIds, *, extra: Extra = ()) -> list[BlockKey]:
        """Keys of the full blocks of a prompt."""
        return block_keys(self.namespace, token_ids, extra=extra)

    def submit_lookup(
        self,
        token_ids: TokenIds,
        *,
        extra: Extra = (),
        pin_s: float = 10.0,
        held: Ticket | None = None,
        deadline_s: float,
    ) -> JobId:
        """Finds the longest prefix that is there and pins it; the result carries `hit`. What lies
        on disk or other nodes counts as soon as it is on its way here. What a ticket `held` pins
        already is no new hit in the store's statistics."""
        keys = self.keys(token_ids, extra=extra)
        make = self.jobs.lookup(keys, pin_s, pending=False, held=held)
        return self.jobs.desk.submit(make(check_timeout(deadline_s), self.jobs.desk.deliver))

    def prefetch(
        self,
        token_ids: TokenIds,
        *,
        extra: Extra = (),
        tier: PrefetchTier = "dram",
        timeout_s: float | None = None,
    ) -> None:
        """Begins to bring the prompt's blocks from disk and other nodes to DRAM while its request
        queues. Returns at once; pins nothing. What has not been found within `timeout_s` is given
        up."""
        check_tier(tier)
        keys, limit = self.keys(token_ids, extra=extra), self.limit(timeout_s)
        prefetch_blocks(self.jobs.desk, keys, self.coverage.packed, limit.remaining())

    def submit_fetch(
        self,
        token_ids: TokenIds,
        *,
        source: str,
        request_block: BlockKey | None = None,
        first_block: int = 0,
        extra: Extra = (),
        pin_s: float = 10.0,
        deadline_s: float,
    ) -> JobId:
        """For a hand-off: takes the full blocks of the prompt from `first_block` on, and
        `request_block` (see `begin_request_store`), from store `source` (an instance) while they
        are still being written there. The result's `hit` counts its blocks and tokens from there.
        It comes once places are reserved, and is shorter when there is no room for all; a load
        waits for the layers. What has not arrived by `deadline_s` is given up."""
        keys = self.keys(token_ids, extra=extra)
        make = self.jobs.fetch(keys, first_block, request_block, source, pin_s)
        return self.jobs.desk.submit(make(check_timeout(deadline_s), self.jobs.desk.deliver))

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
        of the hit), in canonical order. Leave them alone until the result. Layers that are still on
        their way are waited for until the deadline; a block that stops coming has failed, the
        others arrive all the same."""
        make = self.jobs.load(ticket, layers, destinations, blocks)
        return self.jobs.desk.submit(make(check_timeout(deadline_s), self.jobs.desk.deliver))

    def begin_store(
        self,
        token_ids: TokenIds,
        *,
        first_block: int = 0,
        extra: Extra = (),
        replicas: int | None = None,
        deadline_s: float,
    ) -> StoreHandle:
        """Reserves space for the full blocks from `first_block` on. `deadline_s` bounds the whole
        store, up to its commit: what is not committed by then is given back. `replicas` (None: as
        this block store's): complete copies on as many nodes, made soon after the commit, which
        does not wait for them, and again when one goes with its node."""
        keys, wanted = self.keys(token_ids, extra=extra), self.wanted(replicas)
        return self.jobs.begin_store(
            keys, first_block, deadline_s, self.jobs.desk.deliver, replicas=wanted
        )

    def begin_request_store(self, key: BlockKey, *, ttl_s: float, deadline_s: float) -> StoreHandle:
        """As `begin_store`, for one block that is no full block of a prompt: found under `key` (16
        random bytes) only, by nobody else, for `ttl_s` seconds from its commit."""
        return self.jobs.begin_request_store(key, ttl_s, deadline_s, self.jobs.desk.deliver)

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
        return self.jobs.store_layer(store, layer, sources, deadline_s, self.jobs.desk.deliver)

    def commit(self, store: StoreHandle) -> JobId:
        """Makes the blocks visible once every layer is there; the result comes under `store.job`.
        Raises InvalidRequest when layers were not submitted."""
        self.jobs.commit(store)
        return store.job

    def abort(self, store: StoreHandle) -> None:
        """Gives the space back; a store that has ended stays as it is."""
        self.jobs.abort(store)

    def cancel(self, job: JobId) -> None:
        """The job ends CANCELLED, or as it was about to. A finished or unknown one is no error."""
        self.jobs.desk.with_job(job, lambda known: known.stop(JobStatus.CANCELLED, "cancelled"))

    def renew(self, ticket: Ticket | bytes, *, ttl_s: float = 10.0) -> None:
        """Pins for `ttl_s` seconds from now. Of one that had expired, the next load tells."""
        self.jobs.desk.tell(wire.RenewTicket(_ticket_id(ticket), check_timeout(ttl_s, "ttl_s")))

    def release(self, ticket: Ticket | bytes) -> None:
        """Ends the pin. The daemon refuses and counts a second release."""
        if ticket_id := _ticket_id(ticket):
            read_bytes = ticket.located.read_bytes if isinstance(ticket, Ticket) else 0
            self.jobs.desk.tell(wire.Unpin(ticket_id, read_bytes))

    def publish_hbm(
        self, stored_keys: Iterable[BlockKey], removed_keys: Iterable[BlockKey] = ()
    ) -> None:
        """Tells the cluster what this engine's own device cache gained and lost. Advisory; what is
        still held is published again after a reconnect."""
        self.jobs.desk.publish(list(stored_keys), list(removed_keys))

    def poll(self) -> list[JobResult]:
        """Results since the last poll."""
        return self.jobs.desk.poll()

    def fileno(self) -> int:
        """Readable while there are results to poll."""
        return self.jobs.desk.fileno()

    # -- inside the client --------------------------------------------------------------

    def wanted(self, replicas: int | None) -> int:
        """Of one call."""
        return self.replicas if replicas is None else replicas

    def limit(self, timeout_s: float | None) -> Deadline:
        """Of one call."""
        return Deadline(self.timeout_s if timeout_s is None else timeout_s)


def _ticket_id(ticket: Ticket | bytes) -> bytes:
    return ticket.id if isinstance(ticket, Ticket) else ticket

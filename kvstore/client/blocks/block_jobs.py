"""Checks what callers ask of blocks and makes the jobs that do it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ... import wire
from ...errors import InvalidRequest
from ...keys import BlockKey
from ..buffers import readable_bytes, writable_bytes
from ..deadline import check_timeout
from .desk import JobDesk, new_job_id
from .job import Deliver, Job
from .layer_job import LayerJob
from .load_job import LoadJob, Part
from .located import Coverage, StoredExtent
from .lookup_job import AwaitJob, LookupJob
from .store_job import StoreJob
from .types import JobId, JobStatus, StoreHandle, Ticket

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_LOOKUP_CHECKSUMS = 1 << 19
"""Of one lookup's reply: a longer prefix is found only in part."""

Make = Callable[[float, Deliver], Job]
"""A job, given its limit in seconds and who takes its result."""


class BlockJobs:
    """Makes jobs of one block store. Arguments outside their bounds raise InvalidRequest."""

    def __init__(self, desk: JobDesk, coverage: Coverage) -> None:
        self.desk = desk
        self.coverage = coverage

    def lookup(self, keys: Sequence[BlockKey], pin_s: float | None, *, pending: bool) -> Make:
        pin_s = None if pin_s is None else check_timeout(pin_s)
        most = min(
            wire.MAX_KEYS // len(self.coverage.shards),
            MAX_LOOKUP_CHECKSUMS // len(self.coverage.layers),
        )

        def make(deadline_s: float, deliver: Deliver) -> Job:
            return LookupJob(
                self.desk,
                new_job_id(),
                deadline_s,
                deliver,
                keys=keys[:most],
                coverage=self.coverage,
                pin_s=pin_s,
                pending=pending,
            )

        return make

    def wait(self, extents: Sequence[StoredExtent]) -> Make:
        def make(deadline_s: float, deliver: Deliver) -> Job:
            return AwaitJob(self.desk, new_job_id(), deadline_s, deliver, extents=extents)

        return make

    def load(
        self,
        ticket: Ticket,
        layers: Sequence[int],
        destinations: Sequence[Sequence[Buffer]],
        blocks: Sequence[int] | None,
    ) -> Make:
        parts = self._parts(ticket, layers, destinations, blocks)

        def make(deadline_s: float, deliver: Deliver) -> Job:
            return LoadJob(self.desk, new_job_id(), deadline_s, deliver, ticket=ticket, parts=parts)

        return make

    def begin_store(
        self, keys: Sequence[BlockKey], first_block: int, deadline_s: float, deliver: Deliver
    ) -> StoreHandle:
        """Submits the store."""
        if not 0 <= first_block < len(keys):
            raise InvalidRequest(
                f"first_block is {first_block}; the prompt has {len(keys)} full blocks"
            )
        pairs = (len(keys) - first_block) * len(self.coverage.shards)
        if pairs > wire.MAX_KEYS:
            raise InvalidRequest(
                f"{len(keys) - first_block} blocks of {len(self.coverage.shards)} shards; one "
                f"store takes {wire.MAX_KEYS} pairs: store the prompt in parts"
            )
        handle = StoreHandle(
            new_job_id(),
            keys[first_block:],
            first_block=first_block,
            num_layers=len(self.coverage.layers),
        )
        parent = keys[first_block - 1] if first_block else b""
        job = StoreJob(
            self.desk,
            check_timeout(deadline_s),
            deliver,
            handle=handle,
            parent=parent,
            coverage=self.coverage,
        )
        handle.attach(job)
        self.desk.submit(job)
        return handle

    def store_layer(
        self,
        store: StoreHandle,
        layer: int,
        sources: Sequence[Buffer | None],
        deadline_s: float,
        deliver: Deliver,
    ) -> JobId:
        """Submits one layer of a store."""
        self.coverage.check_layer(layer)
        if layer != store.next_layer:
            raise InvalidRequest(
                f"layer {layer} of a store whose next layer is {store.next_layer}; layers come in "
                "order, once each"
            )
        if len(sources) != store.num_blocks:
            raise InvalidRequest(
                f"{len(sources)} sources for a store of {store.num_blocks} blocks; give one each"
            )
        job = LayerJob(
            self.desk,
            new_job_id(),
            check_timeout(deadline_s),
            deliver,
            store=store.running,
            layer=layer,
            sources=[self._source(source, layer) for source in sources],
        )
        self.desk.submit(job)
        store.next_layer += 1
        return job.id

    def commit(self, store: StoreHandle) -> None:
        if store.next_layer != store.num_layers:
            raise InvalidRequest(
                f"commit after {store.next_layer} of {store.num_layers} layers; submit the others "
                "or abort"
            )
        self.desk.with_job(store.job, lambda job: store.running.commit())

    def abort(self, store: StoreHandle) -> None:
        self.desk.with_job(store.job, lambda job: job.stop(JobStatus.CANCELLED, "aborted"))

    def _source(self, source: Buffer | None, layer: int) -> memoryview | None:
        if source is None:
            return None
        data = readable_bytes(source)
        self._check_size("source", len(data), layer)
        return data

    def _parts(
        self,
        ticket: Ticket,
        layers: Sequence[int],
        destinations: Sequence[Sequence[Buffer]],
        blocks: Sequence[int] | None,
    ) -> list[Part]:
        located = ticket.located
        if not self.coverage.is_same(located.coverage):
            raise InvalidRequest(
                f"a ticket for {located.coverage} in a block store of {self.coverage}; load with "
                "the layout and shards that were looked up"
            )
        wanted = range(len(located)) if blocks is None else blocks
        for block in wanted:
            if not 0 <= block < len(located):
                raise InvalidRequest(f"block {block}; the hit has {len(located)} blocks")
        if len(destinations) != len(layers):
            raise InvalidRequest(
                f"{len(destinations)} lists of destinations for {len(layers)} layers"
            )
        parts = []
        for layer, buffers in zip(layers, destinations, strict=True):
            self.coverage.check_layer(layer)
            if len(buffers) != len(wanted):
                raise InvalidRequest(f"{len(buffers)} destinations for {len(wanted)} blocks")
            for block, buffer in zip(wanted, buffers, strict=True):
                destination = writable_bytes(buffer)
                self._check_size("destination", len(destination), layer)
                parts.append(Part(block, located.pieces(block, layer), destination))
        return parts

    def _check_size(self, what: str, size: int, layer: int) -> None:
        expected = self.coverage.layer_bytes(layer)
        if size != expected:
            raise InvalidRequest(
                f"{what} of {size} bytes; a block of layer {layer} has {expected} bytes"
            )

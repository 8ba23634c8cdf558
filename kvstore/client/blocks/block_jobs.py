"""Checks what callers ask of blocks and makes the jobs that do it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ... import wire
from ...errors import InvalidRequest
from ...keys import BLOCK_KEY_BYTES, BlockKey
from ..buffers import readable_bytes, writable_bytes
from ..deadline import check_timeout
from ..put_options import check_replicas
from .copy_run import Part
from .desk import JobDesk, new_job_id
from .job import Deliver, Job
from .layer_job import LayerJob
from .load_job import LoadJob
from .located import Coverage
from .lookup_job import FindJob, Question
from .store_job import SpaceRequest, StoreJob
from .types import JobId, JobStatus, StoreHandle, Ticket

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_LOOKUP_CHECKSUMS = 1 << 19
"""Of one lookup's reply: a longer prefix is found only in part."""

ANSWER_RATIO = 0.8
"""Of a lookup's time, what the daemon may take to ask disk and other nodes: what is here is then
still told in time."""

Make = Callable[[float, Deliver], Job]
"""A job, given its limit in seconds and who takes its result."""


class BlockJobs:
    """Makes jobs of one block store. Arguments outside their bounds raise InvalidRequest."""

    def __init__(self, desk: JobDesk, coverage: Coverage) -> None:
        self.desk = desk
        self.coverage = coverage

    def lookup(
        self,
        keys: Sequence[BlockKey],
        pin_s: float | None,
        *,
        pending: bool,
        held: Ticket | None = None,
    ) -> Make:
        """`pending`: also blocks that a client still writes. `held` is of an earlier look-up of
        these. Keys beyond what one message holds are not asked for."""
        pin_s = None if pin_s is None else check_timeout(pin_s, "pin_s")
        asked = keys[: self._most_keys()]

        def question(namespace: int, left_s: float) -> wire.LookupBlocks:
            return wire.LookupBlocks(
                namespace,
                b"".join(asked),
                self.coverage.packed,
                pin_s,
                pending,
                timeout_s=left_s * ANSWER_RATIO,
                held=b"" if held is None else held.id,
            )

        return self._find(question, asked, len(asked), pin_s)

    def fetch(
        self,
        keys: Sequence[BlockKey],
        first_block: int,
        request_block: BlockKey | None,
        source: str,
        pin_s: float,
    ) -> Make:
        pin_s = check_timeout(pin_s, "pin_s")
        if not 0 <= first_block <= len(keys):
            raise InvalidRequest(
                f"first_block is {first_block}; the prompt has {len(keys)} full blocks"
            )
        keys = keys[first_block:]
        asked = [*keys, *(() if request_block is None else (_request_key(request_block),))]
        if not 0 < len(asked) <= self._most_keys():
            raise InvalidRequest(
                f"a fetch of {len(asked)} blocks; one takes 1..{self._most_keys()} of this coverage"
            )

        def question(namespace: int, left_s: float) -> wire.FetchBlocks:
            return wire.FetchBlocks(
                namespace,
                b"".join(asked),
                self.coverage.packed,
                source,
                pin_s,
                left_s,
                len(asked) - len(keys),
            )

        return self._find(question, asked, len(keys), pin_s)

    def _find(
        self, question: Question, keys: Sequence[BlockKey], num_full: int, pin_s: float | None
    ) -> Make:
        def make(deadline_s: float, deliver: Deliver) -> Job:
            return FindJob(
                self.desk,
                new_job_id(),
                deadline_s,
                deliver,
                question=question,
                keys=keys,
                num_full=num_full,
                coverage=self.coverage,
                pin_s=pin_s,
            )

        return make

    def _most_keys(self) -> int:
        """Of one request."""
        return min(
            wire.MAX_KEYS // len(self.coverage.shards),
            MAX_LOOKUP_CHECKSUMS // len(self.coverage.layers),
        )

    def load(
        self,
        ticket: Ticket,
        layers: Sequence[int],
        destinations: Sequence[Sequence[Buffer]],
        blocks: Sequence[int] | None,
    ) -> Make:
        parts = self._parts(ticket, layers, destinations, blocks)

        def make(deadline_s: float, deliver: Deliver) -> Job:
            return LoadJob(
                self.desk, new_job_id(), deadline_s, deliver, ticket=ticket, layers=parts
            )

        return make

    def begin_store(
        self,
        keys: Sequence[BlockKey],
        first_block: int,
        deadline_s: float,
        deliver: Deliver,
        *,
        replicas: int,
    ) -> StoreHandle:
        """Submits the store."""
        check_replicas(replicas)
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
        parent = keys[first_block - 1] if first_block else b""
        space = SpaceRequest(keys[first_block:], parent, replicas=replicas)
        return self._begin_store(space, first_block, deadline_s, deliver)

    def begin_request_store(
        self, key: BlockKey, ttl_s: float, deadline_s: float, deliver: Deliver
    ) -> StoreHandle:
        """Submits the store of one request-scoped block."""
        space = SpaceRequest([_request_key(key)], b"", request_ttl_s=check_timeout(ttl_s, "ttl_s"))
        return self._begin_store(space, 0, deadline_s, deliver)

    def _begin_store(
        self, space: SpaceRequest, first_block: int, deadline_s: float, deliver: Deliver
    ) -> StoreHandle:
        handle = StoreHandle(
            new_job_id(),
            space.keys,
            first_block=first_block,
            num_layers=len(self.coverage.layers),
        )
        job = StoreJob(
            self.desk,
            check_timeout(deadline_s),
            deliver,
            handle=handle,
            space=space,
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
    ) -> list[list[Part]]:
        """One list a layer."""
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
            row = []
            for block, buffer in zip(wanted, buffers, strict=True):
                destination = writable_bytes(buffer)
                self._check_size("destination", len(destination), layer)
                row.append(Part(block, located.pieces(block, layer), destination))
            parts.append(row)
        return parts

    def _check_size(self, what: str, size: int, layer: int) -> None:
        expected = self.coverage.layer_bytes(layer)
        if size != expected:
            raise InvalidRequest(
                f"{what} of {size} bytes; a block of layer {layer} has {expected} bytes"
            )


def _request_key(key: BlockKey) -> BlockKey:
    if len(key) != BLOCK_KEY_BYTES:
        raise InvalidRequest(
            f"request block key of {len(key)} bytes; give {BLOCK_KEY_BYTES} random bytes"
        )
    return key

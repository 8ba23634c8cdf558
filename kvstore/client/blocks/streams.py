"""Reading and writing blocks layer by layer, for scripts and tests: the blocking form. What it has
in common with the asyncio form (async_store.py) is in ReaderSteps and WriterSteps, which never
wait."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ... import wire
from ...keys import BlockKey
from ...types import ReserveStatus
from ..deadline import Deadline
from .block_jobs import BlockJobs, Make
from .desk import Waiter, hit_of, raise_unless_done
from .job import Deliver
from .types import JobResult, PrefixHit, StoreHandle

if TYPE_CHECKING:
    from typing_extensions import Buffer

PIN_SECONDS = 10.0


class ReaderSteps:
    """A prefix, also one that is still being written: `num_tokens` of it."""

    def __init__(self, jobs: BlockJobs, keys: Sequence[BlockKey]) -> None:
        self._jobs = jobs
        self._keys = keys
        self._hit: PrefixHit
        self._ticket = b""  # pinned until `_release`

    @property
    def num_tokens(self) -> int:
        return self._hit.num_tokens

    @property
    def blocks(self) -> tuple[BlockKey, ...]:
        return self._hit.blocks

    def _find(self) -> Make:
        return self._jobs.lookup(self._keys, PIN_SECONDS, pending=True)

    def _found(self, result: JobResult) -> None:
        self._hit = hit_of(result)
        self._ticket = self._hit.ticket.id

    def _load(self, layer: int) -> tuple[Make, list[bytearray]]:
        num_bytes = self._jobs.coverage.layer_bytes(layer)
        buffers = [bytearray(num_bytes) for _ in self._hit.blocks]
        make = self._jobs.load(self._hit.ticket, [layer], [buffers], None)
        if self._ticket:
            self._jobs.desk.tell(wire.RenewTicket(self._ticket, PIN_SECONDS))
        return make, buffers

    def _release(self) -> None:
        ticket, self._ticket = self._ticket, b""
        if ticket:
            self._jobs.desk.tell(wire.Unpin(ticket, self._hit.ticket.located.read_bytes))


class WriterSteps:
    """Blocks under way. Afterwards `failed_blocks` are those that found no room."""

    def __init__(
        self, jobs: BlockJobs, keys: Sequence[BlockKey], first_block: int, *, replicas: int
    ) -> None:
        self._jobs = jobs
        self._keys = keys
        self._first_block = first_block
        self._replicas = replicas
        self._store: StoreHandle
        self._ended = False  # committed or aborted
        self.failed_blocks: tuple[int, ...] = ()

    @property
    def statuses(self) -> tuple[ReserveStatus, ...] | None:
        """One a block, once the daemon has answered (surely after the first layer)."""
        return self._store.statuses

    def _begin(self, deadline_s: float, deliver: Deliver) -> None:
        self._store = self._jobs.begin_store(
            self._keys, self._first_block, deadline_s, deliver, replicas=self._replicas
        )

    def _commit(self) -> None:
        self._jobs.commit(self._store)
        self._ended = True

    def _abort(self) -> None:
        self._ended = True
        self._jobs.abort(self._store)

    def _committed(self, result: JobResult) -> None:
        raise_unless_done(result)
        self.failed_blocks = result.failed_blocks


class BlockReader(ReaderSteps):
    """A context manager; the pin lasts until its end. `deadline` bounds everything from the opening
    to the last layer."""

    def __init__(self, jobs: BlockJobs, keys: Sequence[BlockKey], deadline: Deadline) -> None:
        super().__init__(jobs, keys)
        self._deadline = deadline
        self._found(jobs.desk.run(self._find(), deadline))

    def layer(self, layer: int) -> list[memoryview]:
        """Layer `layer` of each block, copied and verified; waits until its writer has completed
        it. Raises ViewExpired when a block's writer gave up or the block is gone, Corrupt when its
        bytes are not what was written, StoreTimeout, StoreUnavailable."""
        make, buffers = self._load(layer)
        raise_unless_done(self._jobs.desk.run(make, self._deadline))
        return [memoryview(buffer) for buffer in buffers]

    def close(self) -> None:
        """Ends the pin. Idempotent."""
        self._release()

    def __enter__(self) -> BlockReader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class BlockWriter(WriterSteps):
    """`layer` in order, commit when the `with` ends well, abort when it does not. `deadline` bounds
    it all."""

    def __init__(
        self,
        jobs: BlockJobs,
        keys: Sequence[BlockKey],
        first_block: int,
        deadline: Deadline,
        *,
        replicas: int = 1,
    ) -> None:
        super().__init__(jobs, keys, first_block, replicas=replicas)
        self._deadline = deadline
        self._result = Waiter()
        jobs.desk.wait_attached(deadline)
        self._begin(deadline.check("writer"), self._result.deliver)

    def layer(self, layer: int, buffers: Sequence[Buffer | None]) -> None:
        """Stores one layer, one buffer a block, and waits until it is complete for readers of the
        stream. Raises what ended the store."""
        waiter = Waiter()
        left = self._deadline.check("writer")
        self._jobs.store_layer(self._store, layer, buffers, left, waiter.deliver)
        raise_unless_done(waiter.wait(left))

    def commit(self) -> JobResult:
        """Raises InvalidRequest before the last layer, and what ended the store."""
        self._commit()
        result = self._result.wait(self._deadline.remaining())
        self._committed(result)
        return result

    def abort(self) -> None:
        """Gives the space back, and returns once no copy runs."""
        self._abort()
        self._result.wait(self._deadline.remaining())

    def __enter__(self) -> BlockWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if kind is not None:
            self.abort()
        elif not self._ended:
            self.commit()

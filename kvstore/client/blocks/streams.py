"""Blocking reading and writing of blocks, layer by layer, for scripts and tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ... import wire
from ...errors import ViewExpired
from ...keys import BlockKey
from ...types import ReserveStatus
from ..deadline import Deadline
from .block_jobs import BlockJobs
from .desk import Waiter, raise_unless_done
from .types import JobResult, PrefixHit, StoreHandle

if TYPE_CHECKING:
    from typing_extensions import Buffer

PIN_SECONDS = 10.0


class BlockReader:
    """A prefix, also one that is still being written: `num_tokens` of it. A context manager; the
    pin lasts until its end. `deadline` bounds everything from the opening to the last layer."""

    def __init__(self, jobs: BlockJobs, keys: Sequence[BlockKey], deadline: Deadline) -> None:
        self._jobs = jobs
        self._keys = keys
        self._deadline = deadline
        self._hit = self._find(keys, PIN_SECONDS)
        self._ticket = self._hit.ticket
        self._read_bytes = 0

    @property
    def num_tokens(self) -> int:
        return self._hit.num_tokens

    @property
    def blocks(self) -> tuple[BlockKey, ...]:
        return self._hit.blocks

    def layer(self, layer: int) -> list[memoryview]:
        """Layer `layer` of each block, copied and verified; waits until its writer has completed
        it. Raises ViewExpired when a block's writer gave up or the block is gone, Corrupt when its
        bytes are not what was written, StoreTimeout, StoreUnavailable."""
        self._jobs.coverage.check_layer(layer)
        if self._ticket.id:
            self._jobs.desk.tell(wire.RenewTicket(self._ticket.id, PIN_SECONDS))
        waiting = self._hit.ticket.located.incomplete(layer)
        if waiting:
            raise_unless_done(self._jobs.desk.run(self._jobs.wait(waiting), self._deadline))
            self._hit = self._find_again()
        num_bytes = self._jobs.coverage.layer_bytes(layer)
        buffers = [bytearray(num_bytes) for _ in self._hit.blocks]
        make = self._jobs.load(self._hit.ticket, [layer], [buffers], None)
        raise_unless_done(self._jobs.desk.run(make, self._deadline))
        self._read_bytes += num_bytes * len(buffers)
        return [memoryview(buffer) for buffer in buffers]

    def close(self) -> None:
        """Ends the pin. Idempotent."""
        ticket_id, self._ticket = self._ticket.id, self._hit.ticket
        if ticket_id:
            self._jobs.desk.tell(wire.Unpin(ticket_id, self._read_bytes))

    def __enter__(self) -> BlockReader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _find(self, keys: Sequence[BlockKey], pin_s: float | None) -> PrefixHit:
        make = self._jobs.lookup(keys, pin_s, pending=True)
        result = self._jobs.desk.run(make, self._deadline)
        raise_unless_done(result)
        assert result.hit is not None
        return result.hit

    def _find_again(self) -> PrefixHit:
        """The same blocks, with the checksums that are known by now."""
        hit = self._find(self._hit.blocks, None)
        if len(hit.blocks) < len(self._hit.blocks):
            raise ViewExpired(
                f"{len(hit.blocks)} of {len(self._hit.blocks)} blocks are still there; look again"
            )
        return hit


class BlockWriter:
    """Blocks under way: `layer` in order, commit when the `with` ends well, abort when it does not.
    Afterwards `failed_blocks` are those that found no room. `deadline` bounds it all."""

    def __init__(
        self, jobs: BlockJobs, keys: Sequence[BlockKey], first_block: int, deadline: Deadline
    ) -> None:
        self._jobs = jobs
        self._deadline = deadline
        self._result = Waiter()
        self._ended = False  # committed or aborted
        self.failed_blocks: tuple[int, ...] = ()
        jobs.desk.wait_attached(deadline)
        self._store: StoreHandle = jobs.begin_store(
            keys, first_block, deadline.check("writer"), self._result.deliver
        )

    @property
    def statuses(self) -> tuple[ReserveStatus, ...] | None:
        """One a block, once the daemon has answered (surely after the first layer)."""
        return self._store.statuses

    def layer(self, layer: int, buffers: Sequence[Buffer | None]) -> None:
        """Stores one layer, one buffer a block, and waits until it is complete for readers of the
        stream. Raises what ended the store."""
        waiter = Waiter()
        left = self._deadline.check("writer")
        self._jobs.store_layer(self._store, layer, buffers, left, waiter.deliver)
        raise_unless_done(waiter.wait(left))

    def commit(self) -> JobResult:
        """Raises InvalidRequest before the last layer, and what ended the store."""
        self._jobs.commit(self._store)
        self._ended = True
        result = self._result.wait(self._deadline.remaining())
        raise_unless_done(result)
        self.failed_blocks = result.failed_blocks
        return result

    def abort(self) -> None:
        """Gives the space back, and returns once no copy runs."""
        self._ended = True
        self._jobs.abort(self._store)
        self._result.wait(self._deadline.remaining())

    def __enter__(self) -> BlockWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if kind is not None:
            self.abort()
        elif not self._ended:
            self.commit()

"""Jobs that find blocks, and that wait for layers of blocks still being written."""

from __future__ import annotations

from collections.abc import Sequence

from ... import wire
from ...errors import InvalidRequest
from ...keys import BlockKey
from ..connections.channel import ChannelReply
from .job import Deliver, Home, Job
from .located import Coverage, LocatedBlocks, StoredExtent
from .types import JobId, JobStatus, PrefixHit, Ticket


class LookupJob(Job):
    """Longest prefix of `keys`; `pending` also counts blocks still being written."""

    def __init__(
        self,
        home: Home,
        job: JobId,
        deadline_s: float,
        deliver: Deliver,
        *,
        keys: Sequence[BlockKey],
        coverage: Coverage,
        pin_s: float | None,
        pending: bool,
    ) -> None:
        super().__init__(home, job, deadline_s, deliver)
        self._keys = keys
        self._coverage = coverage
        self._pin_s = pin_s
        self._pending = pending

    def start(self, namespace: int) -> None:
        message = wire.LookupBlocks(
            namespace, b"".join(self._keys), self._coverage.packed, self._pin_s, self._pending
        )
        self.channel.request(message, self._found)

    def _found(self, reply: ChannelReply) -> None:
        message, attachment = reply.message, self.channel.attachment
        if self.finished and isinstance(message, wire.BlocksReply) and message.ticket:
            self.channel.request(wire.Unpin(message.ticket), lambda reply: None)
        if not self.expected(reply):
            return
        assert isinstance(message, wire.BlocksReply)
        assert attachment is not None
        try:
            located = LocatedBlocks(message, self._keys, attachment.instance, self._coverage)
        except (InvalidRequest, ValueError, IndexError) as error:
            self.fail(InvalidRequest(f"the store's answer makes no sense: {error}"))
            return
        hit = PrefixHit(
            num_tokens=len(located) * self._coverage.block_tokens,
            blocks=located.keys,
            tiers=located.tiers,
            ticket=Ticket(message.ticket, self._pin_s or 0.0, located),
        )
        self.finish(JobStatus.DONE, hit=hit)


class AwaitJob(Job):
    """Done when every extent is complete; fails when one's reservation ends first."""

    def __init__(
        self,
        home: Home,
        job: JobId,
        deadline_s: float,
        deliver: Deliver,
        *,
        extents: Sequence[StoredExtent],
    ) -> None:
        super().__init__(home, job, deadline_s, deliver)
        self._extents = extents
        self._missing = len(extents)

    def start(self, namespace: int) -> None:
        for extent in self._extents:
            message = wire.AwaitExtent(
                extent.entry.slot, extent.entry.generation, extent.layer, self._deadline_s
            )
            self.channel.request(message, self._complete)

    def _complete(self, reply: ChannelReply) -> None:
        if self.expected(reply):
            self._missing -= 1
            if not self._missing:
                self.finish(JobStatus.DONE)

"""The job that finds blocks and pins them: what is there or, for a hand-off, on its way here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ... import wire
from ...errors import InvalidRequest
from ...keys import BlockKey
from ..connections.channel import ChannelReply
from .job import Deliver, Home, Job
from .located import Coverage, LocatedBlocks
from .types import JobId, JobStatus, PrefixHit, Ticket

Question = Callable[[int, float], wire.LookupBlocks | wire.FetchBlocks]
"""The request, given the namespace's number and the seconds that are left."""


class FindJob(Job):
    """Asks for blocks by key; the first `num_full` keys are those of the prompt's full blocks."""

    def __init__(
        self,
        home: Home,
        job: JobId,
        deadline_s: float,
        deliver: Deliver,
        *,
        question: Question,
        keys: Sequence[BlockKey],
        num_full: int,
        coverage: Coverage,
        pin_s: float | None,
    ) -> None:
        super().__init__(home, job, deadline_s, deliver)
        self._question = question
        self._keys = keys
        self._num_full = num_full
        self._coverage = coverage
        self._pin_s = pin_s

    def start(self, namespace: int) -> None:
        self.channel.request(self._question(namespace, self.remaining()), self._found)

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
            num_tokens=min(len(located), self._num_full) * self._coverage.block_tokens,
            blocks=located.keys,
            tiers=located.tiers,
            transports=located.transports,
            peers=located.peers,
            ticket=Ticket(message.ticket, self._pin_s or 0.0, located),
        )
        self.finish(JobStatus.DONE, hit=hit)

"""What a store's answer to a put means."""

from __future__ import annotations

from .. import wire
from ..errors import StoreUnavailable
from ..types import PutResult, PutStatus

STORED = PutResult(PutStatus.STORED)
_PLAIN: dict[int, PutResult] = {
    PutStatus.STORED: STORED,
    PutStatus.EXISTS: PutResult(PutStatus.EXISTS),
}


def result_of(status: int, reason: str) -> PutResult:
    return _PLAIN.get(status) or PutResult(PutStatus(status), reason)


def results_of(reply: wire.Reply, count: int) -> list[PutResult]:
    """Of so many entries. Raises StoreUnavailable on another answer."""
    if not isinstance(reply, wire.PutReply) or len(reply.results) != count:
        raise StoreUnavailable(f"the store answered {count} entries with {reply!r:.100}")
    return [result_of(status, reason) for status, reason in reply.results]


def run_reply(reply: wire.Reply, count: int) -> wire.RunReply:
    """As `results_of`, where there is more to know."""
    if not isinstance(reply, wire.RunReply) or len(reply.statuses) != count:
        raise StoreUnavailable(f"the store answered {count} entries with {reply!r:.100}")
    return reply

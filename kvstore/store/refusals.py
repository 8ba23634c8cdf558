"""Why a reservation is refused for now: words for the client, and the count.

What counts is what a user was refused: neither a fill nor a run, whose entries the client then
stores another way."""

from __future__ import annotations

from moontide.transfer.types import Instance

from ..types import ReserveStatus
from .counters import Counters
from .pool import Pool
from .shares import Shares
from .types import ReserveResult

NOT_ADMITTED = ReserveResult(
    ReserveStatus.FULL,
    reason="not admitted: by the rule of its namespace (setting admission) it is stored when it is "
    "offered again",
)


class Refusals:
    """Each is FULL: the same request may succeed later. Whoever tells a user counts it."""

    def __init__(self, pool: Pool, counters: Counters, shares: Shares) -> None:
        self._pool = pool
        self._counters = counters
        self._shares = shares

    def count(self, num_entries: int) -> None:
        self._counters.refused_puts += num_entries

    def no_room(self, num_bytes: int) -> ReserveResult:
        counters = self._counters
        return ReserveResult(
            ReserveStatus.FULL,
            reason=f"no room for {num_bytes} bytes: of {self._pool.capacity_bytes} in the tier "
            f"{counters.pinned_bytes} are pinned, {counters.reserved_bytes} reserved, "
            f"{counters.quarantined_bytes} in quarantine; retry later",
        )

    def beyond_share(self, client: Instance, num_bytes: int) -> ReserveResult:
        held_bytes, held_entries = self._shares.held(client)
        return ReserveResult(
            ReserveStatus.FULL,
            reason=f"{num_bytes} bytes; this client has {held_bytes} bytes of {held_entries} "
            f"entries reserved and may have {self._shares.max_bytes} of "
            f"{self._shares.max_entries}: commit or abort first",
        )

    def over_cap(self, tenant: str, held_bytes: int) -> ReserveResult:
        return ReserveResult(
            ReserveStatus.FULL,
            reason=f"tenant {tenant} holds {held_bytes} bytes and would exceed its cap (setting "
            "tenant_cap): too much is pinned or being written, or asked for at once; retry later",
        )

    def no_slots(self, num_entries: int) -> str:
        """For entries of a run, whose space there is: the pool's `max_entries` are all held.
        Counted."""
        self.count(num_entries)
        return (
            f"no slot for {num_entries} entries: all {self._pool.settings.max_entries} of the pool "
            "are pinned or being written; raise --max-entries or retry later"
        )

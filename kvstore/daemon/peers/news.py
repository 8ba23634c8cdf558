"""How a fill learns of layers that its peer did not have when it was asked."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from typing import Protocol

from ...errors import StoreUnavailable
from ...store import Store
from .pins import PIN_SECONDS, PeerPins
from .plan import FillPlan, Piece
from .remote import WAIT_SECONDS, RemoteBlocks, match

PAUSE_SECONDS = 0.02
"""Before a peer that answers at once, and tells nothing new, is asked again."""
ORPHANED_SECONDS = 2.0
"""For another to begin what its writer at the peer gave up, by its end or its will."""


class NewsSource(Protocol):
    def keep(self, plan: FillPlan) -> None:
        """The fill goes on: the peer keeps what it holds for it. Raises StoreError when nobody
        wants it any more."""

    async def news(self, plan: FillPlan) -> None:
        """Returns when pieces may have more available, or were given up; never so often that it
        keeps the peer busy. Raises StoreError when no more will come."""

    def close(self) -> None:
        """The fill is over: the peer need not hold anything for it."""


class PinnedSource:
    """No news: the peer has it all, pinned."""

    def __init__(self, pins: PeerPins) -> None:
        self._pins = pins

    def keep(self, plan: FillPlan) -> None:
        self._pins.renew()

    async def news(self, plan: FillPlan) -> None:
        plan.give_up(plan.waiting())

    def close(self) -> None:
        self._pins.release()


class CompletingSource:
    """News of blocks that the peer has, and may still be filling from its disk. One that ends
    there ends here."""

    def __init__(self, blocks: RemoteBlocks) -> None:
        self._blocks = blocks

    def keep(self, plan: FillPlan) -> None:
        self._blocks.pins.renew()

    async def news(self, plan: FillPlan) -> None:
        waiting = plan.waiting()
        first = waiting[0]
        assert first.remote is not None, "such fills are made of what the peer has"
        complete = await self._blocks.await_extent(first.remote, first.submitted)
        if complete is None:
            return
        if complete:
            await self._blocks.refresh(waiting)
        if first.available <= first.submitted:
            plan.give_up([first])

    def close(self) -> None:
        self._blocks.pins.release()


class GrowingSource:
    """News of blocks that somebody still writes at the peer, or will: for a hand-off. Those that
    are not there are waited for, until nobody here holds any of the pieces, or a writer gave up and
    nobody took its place."""

    def __init__(self, blocks: RemoteBlocks, store: Store) -> None:
        self._blocks = blocks
        self._store = store
        self._hopeless_at = math.inf  # monotonic seconds

    def keep(self, plan: FillPlan) -> None:
        if not any(self._store.is_pinned(piece.slot, piece.generation) for piece in plan.pieces):
            raise StoreUnavailable("nobody holds what is fetched any more")
        if time.monotonic() >= self._hopeless_at:
            raise StoreUnavailable(
                f"its writer gave up, and nobody else began within {ORPHANED_SECONDS:g} s"
            )
        self._blocks.pins.renew()

    async def news(self, plan: FillPlan) -> None:
        waiting = plan.waiting()
        before = [piece.remote for piece in waiting]
        await self._ask(plan, waiting)
        after = [piece.remote for piece in waiting]
        if all(now is None or now == was for now, was in zip(after, before, strict=True)):
            await asyncio.sleep(PAUSE_SECONDS)

    async def _ask(self, plan: FillPlan, waiting: Sequence[Piece]) -> None:
        first = waiting[0]
        if first.remote is None:
            await self._find(plan, waiting)
            if first.remote is not None:
                self._hopeless_at = math.inf
            return
        complete = await self._blocks.await_extent(first.remote, first.submitted)
        if complete is False:
            first.remote = None  # another may begin
            self._hopeless_at = time.monotonic() + ORPHANED_SECONDS
        elif complete:
            await self._blocks.refresh([piece for piece in waiting if piece.remote is not None])
            unknown = [piece for piece in waiting if piece.remote is None]
            if unknown:
                await self._find(plan, unknown, wait_s=0.0)

    def close(self) -> None:
        self._blocks.pins.release()

    async def _find(
        self, plan: FillPlan, pieces: Sequence[Piece], wait_s: float = WAIT_SECONDS
    ) -> None:
        """A block that is there in other shards than ours never comes in ours."""
        keys = list(dict.fromkeys(piece.key for piece in pieces))
        offer = await self._blocks.find_pending(keys, wait_s=wait_s, pin_s=PIN_SECONDS)
        match(pieces, keys, offer)
        offered = set(keys[: len(offer)])
        plan.give_up([each for each in pieces if each.remote is None and each.key in offered])

"""Remote reads: what neither our DRAM nor our disk has, from whichever peer has most of it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from itertools import groupby
from typing import Literal

from ...errors import StoreError
from ...index import PrefixIndex
from ...keys import BlockKey, Namespace
from ...layout import Shard
from ...store import FILL_OWNER
from ...types import Tier
from ..sources import BlocksWanted, Then
from .fences import Fences
from .filling import FillTools, PeerFill
from .news import CompletingSource
from .offers import Offer, RemoteEntry
from .plan import FillPlan, Piece
from .remote import RemoteBlocks
from .reserving import FillSpec, reserve_pieces
from .roster import Neighbour, Roster
from .tasks import TaskGroup

logger = logging.getLogger(__name__)

ASK_SECONDS = 0.5
"""For one lookup, all peers together; what asks has a limit of its own, mostly a shorter one."""
MAX_PEERS = 3
"""Asked for one lookup, one after another."""
FILL_SECONDS = 10.0
COPY_SECONDS = 30.0
"""How long a copy that is not kept waits for its readers; it ends with the last of them."""

RemoteCopies = Literal["keep", "drop"]
"""What becomes of a block read from a peer: a replica here, or gone with its readers."""


class PeerBlockSource:
    """Asks peers by what the index says of them; see `BlockSource`."""

    def __init__(
        self,
        tools: FillTools,
        roster: Roster,
        index: PrefixIndex,
        tasks: TaskGroup,
        fences: Fences,
        *,
        copies: RemoteCopies,
    ) -> None:
        self._fences = fences
        self._copy_seconds = COPY_SECONDS if copies == "drop" else None
        self._tools = tools
        self._roster = roster
        self._index = index
        self._tasks = tasks

    def prepare(self, request: BlocksWanted, then: Then) -> None:
        search = _Search(self._tools.store.namespace(request.namespace), request)
        if self._best(search) is None or not self._tasks.has_room:
            then()
        else:
            self._tasks.start(self._bring(search, then))

    async def _bring(self, search: _Search, then: Then) -> None:
        now = time.monotonic()
        try:
            async with asyncio.timeout(min(ASK_SECONDS, search.request.deadline - now)):
                while len(search.asked) < MAX_PEERS and await self._ask_best(search):
                    pass
        except TimeoutError:
            logger.info("peer_lookup_late asked=%s", sorted(search.asked))
        finally:
            then()
            for plan in search.plans:  # seen now, however soon the asker lets go again
                plan.drop_released(self._tools.store.is_pinned)

    async def _ask_best(self, search: _Search) -> bool:
        """False when nobody else has more, or there is no room for it."""
        best = self._best(search)
        if best is None:
            return False
        neighbour, keys = best[0], self._fences.leading(best[1], time.monotonic())
        num_fences = self._fences.num_block_fences
        search.asked.add(neighbour.record.instance)
        digest = search.namespace.digest
        floor = self._tools.floor_of(digest)
        blocks = RemoteBlocks(
            neighbour.link, search.namespace, search.request.coverage, floor=floor
        )
        try:
            offer = await blocks.find(keys, timeout_s=ASK_SECONDS)
        except StoreError as error:
            logger.info("peer_lookup_failed peer=%s reason=%s", neighbour.record.id, error)
            blocks.pins.release()
            return True
        is_void = self._fences.num_block_fences != num_fences  # some may have been removed
        if is_void or self._tools.floor_of(digest) != floor:  # raised: the offer lies below it
            blocks.pins.release()
            return False
        pieces, has_room = self._reserve(search, neighbour.record.id, keys, offer)
        if not pieces:
            blocks.pins.release()
            return has_room
        deadline = time.monotonic() + FILL_SECONDS
        source, plan = CompletingSource(blocks), FillPlan(pieces)
        search.plans.append(plan)
        priority = search.request.priority
        fill = PeerFill(self._tools, neighbour.link, plan, source, deadline, priority=priority)
        self._tasks.start(fill.run())
        return has_room

    def _best(self, search: _Search) -> tuple[Neighbour, list[BlockKey]] | None:
        """Who has the longest prefix of what is missing, most of it in DRAM, the nearest of those;
        and which keys to ask it for."""
        neighbours = {
            neighbour.record.instance: neighbour
            for neighbour in self._roster.neighbours()
            if neighbour.is_readable and neighbour.record.instance not in search.asked
        }
        if not neighbours:
            return None
        request = search.request
        missing = self._tools.store.missing(request.namespace, request.keys, request.coverage)
        keys = [request.keys[index] for index in missing]
        layout, coverage = search.namespace.layout, tuple(request.coverage)
        matches = self._index.longest_prefix(search.digest, keys, layout, coverage)
        candidates = [
            (
                match.num_blocks,
                match.by_tier.get(Tier.DRAM, 0),
                neighbours[instance].link.nearness.closeness,
                instance,
            )
            for instance, match in matches.items()
            if instance in neighbours
        ]
        if not candidates:
            return None
        num_blocks, *_, instance = max(candidates)
        return neighbours[instance], keys[:num_blocks]

    def _reserve(
        self, search: _Search, peer: str, keys: Sequence[BlockKey], offer: Offer
    ) -> tuple[list[Piece], bool]:
        """Places for what is offered, in order, as far as there is room."""
        pieces: list[Piece] = []
        offered = list(zip(keys, offer, strict=False))
        for (tier, shards), run in groupby(offered, key=lambda item: _shape(item[1])):
            blocks = list(run)
            spec = FillSpec(
                number=search.request.namespace,
                namespace=search.namespace,
                keys=[key for key, _ in blocks],
                parents=[search.parents[key] for key, _ in blocks],
                shards=shards,
                tier=tier,
                peer=peer,
                request_scoped_s=self._copy_seconds,
            )
            reserved, has_room = reserve_pieces(self._tools.store, spec)
            entries: dict[tuple[bytes, Shard], RemoteEntry] = {
                (key, entry.shard): entry for key, block in blocks for entry in block
            }
            for piece in reserved:
                piece.remote = entries[piece.key, piece.shard]
                self._announce_checksums(piece, piece.remote)
            pieces += reserved
            if not has_room:
                return pieces, False
        return pieces, True

    def _announce_checksums(self, piece: Piece, entry: RemoteEntry) -> None:
        if all(entry.checksums):
            self._tools.store.expect_checksums(
                FILL_OWNER, piece.slot, piece.generation, entry.checksums
            )


class _Search:
    """One lookup's way through the peers."""

    def __init__(self, namespace: Namespace, request: BlocksWanted) -> None:
        self.namespace = namespace
        self.request = request
        self.digest = namespace.digest.hex()
        self.parents = dict(zip(request.keys, [b"", *request.keys], strict=False))
        self.asked: set[str] = set()  # instances
        self.plans: list[FillPlan] = []  # of what comes


def _shape(entries: Sequence[RemoteEntry]) -> tuple[Tier, tuple[Shard, ...]]:
    """What blocks filled together have in common. A block that lies in both tiers counts for the
    slower."""
    tiers = {entry.tier for entry in entries}
    tier = Tier.NVME if Tier.NVME in tiers else Tier.DRAM
    return tier, tuple(entry.shard for entry in entries)

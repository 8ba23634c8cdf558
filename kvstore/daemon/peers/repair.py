"""Replicas that went with their node are made again elsewhere, in the background.

Each store that has a replica knows how many are wanted. When the cluster has changed, and stayed so
for a while, the one of those left that comes first for the entry (rendezvous hash) has another
store bring a copy: a little at a time, behind everything else there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice

from ... import wire
from ...errors import StoreError
from ...index import PrefixIndex
from ...keys import EntryId
from .roster import Neighbour, Roster

logger = logging.getLogger(__name__)

MAX_WANTED = 100_000
"""Entries whose replicas are looked after; beyond that the oldest are not any more."""
PASS_SECONDS = 2.0
LONGEST_PASS_SECONDS = 60.0
"""Between passes that leave something to be done, each twice as long after the one before."""
LOT_ENTRIES = 32
LOT_SECONDS = 5.0
"""For a lot to be there."""
ASK_SECONDS = 1.25
PAUSE_SECONDS = 0.05
"""After each lot, and between looks at whether it is there."""

Home = Callable[[EntryId, Sequence[str]], str]
"""Which of these nodes comes first for an entry."""
LiesHere = Callable[[Sequence[EntryId]], list[EntryId]]
"""Those of them that this node has, in whatever tier."""


class WantedReplicas:
    """How many replicas of each entry are wanted, of those that have more than one. Pure."""

    def __init__(self) -> None:
        self._wanted: dict[EntryId, int] = {}

    def __len__(self) -> int:
        return len(self._wanted)

    def want(self, entries: Iterable[EntryId], replicas: int) -> None:
        for entry in entries:
            self._wanted.pop(entry, None)
            self._wanted[entry] = replicas
        for entry in list(islice(self._wanted, max(0, len(self._wanted) - MAX_WANTED))):
            del self._wanted[entry]

    def forget(self, entries: Iterable[EntryId]) -> None:
        """They were changed or are gone."""
        for entry in entries:
            self._wanted.pop(entry, None)

    def of(self, entry: EntryId) -> int:
        """0: of this one none are looked after."""
        return self._wanted.get(entry, 0)

    def missing(self, holders: Mapping[EntryId, set[str]], home: Home, node: str) -> list[EntryId]:
        """Of these, which node `node` has to see to, for each replica that is missing once.
        `holders`: live nodes that have one, `node` among them."""
        due: list[EntryId] = []
        for entry, there in holders.items():
            replicas = self.of(entry)
            if len(there) < replicas and home(entry, sorted(there)) == node:
                due += [entry] * (replicas - len(there))
        return due

    def entries(self) -> list[EntryId]:
        return list(self._wanted)


class Repair:
    """Works until its task is cancelled."""

    def __init__(
        self,
        wanted: WantedReplicas,
        roster: Roster,
        index: PrefixIndex,
        *,
        node: str,
        home: Home,
        lies_here: LiesHere,
    ) -> None:
        self._wanted = wanted
        self._roster = roster
        self._index = index
        self._node = node
        self._home = home
        self._lies_here = lies_here
        self._failed: set[str] = set()  # node ids that took no copy, in the cluster as it is
        self.num_repaired = 0

    async def run(self) -> None:
        """Nothing to do while the cluster is as it was when all was as it should be; nothing is
        done while it changes."""
        seen, pause, is_whole = self._instances(), PASS_SECONDS, True
        while True:
            await asyncio.sleep(pause)
            now = self._instances()
            if now != seen:
                seen, pause, is_whole = now, PASS_SECONDS, False
                self._failed.clear()
            elif not is_whole:
                is_whole = await self._pass()
                pause = PASS_SECONDS if is_whole else min(2 * pause, LONGEST_PASS_SECONDS)

    def _instances(self) -> frozenset[str]:
        return frozenset(each.record.instance for each in self._roster.neighbours())

    async def _pass(self) -> bool:
        """False: another one is needed."""
        entries, is_whole = self._wanted.entries(), True
        try:
            for start in range(0, len(entries), LOT_ENTRIES):
                is_whole &= await self._repair(entries[start : start + LOT_ENTRIES])
                await asyncio.sleep(0)  # let clients have a turn
        except Exception:  # the task boundary
            logger.exception("repair_failed")
            return False
        return is_whole

    async def _repair(self, entries: Sequence[EntryId]) -> bool:
        neighbours = {each.record.instance: each for each in self._roster.neighbours()}
        holders = {e: self._holders(e, neighbours) for e in self._lies_here(entries)}
        candidates = {n.record.id: n for n in neighbours.values() if n.link.is_up}
        lots: dict[tuple[str, int], list[EntryId]] = defaultdict(list)
        is_whole = True
        for entry in self._wanted.missing(holders, self._home, self._node):
            free = candidates.keys() - holders[entry]
            if free:
                chosen = self._home(entry, sorted(free - self._failed or free))
                holders[entry].add(chosen)
                lots[chosen, self._wanted.of(entry)].append(entry)
            else:
                is_whole = False
        for (node, replicas), lot in lots.items():
            if await _bring(candidates[node], lot, replicas):
                self.num_repaired += len(lot)
            else:
                self._failed.add(node)
                is_whole = False
            await asyncio.sleep(PAUSE_SECONDS)
        return is_whole

    def _holders(self, entry: EntryId, neighbours: Mapping[str, Neighbour]) -> set[str]:
        """Nodes, ours among them."""
        held = {instance for instance, _ in self._index.holders(entry)}
        return {self._node, *(neighbours[each].record.id for each in held & neighbours.keys())}


async def _bring(neighbour: Neighbour, entries: Sequence[EntryId], replicas: int) -> bool:
    """Whether the peer has them all, brought from here behind all that others wait for there. It is
    told how many `replicas` are wanted."""
    link, deadline = neighbour.link, time.monotonic() + LOT_SECONDS
    begin = wire.Prefetch(list(entries))
    look = wire.Lookup(list(entries), local_only=True, replicas=replicas)
    while time.monotonic() < deadline:
        try:
            await link.ask(begin, wire.CountReply, timeout_s=ASK_SECONDS)
            reply = await link.ask(look, wire.LookupReply, timeout_s=ASK_SECONDS)
        except StoreError as error:
            logger.info("replica_failed peer=%s reason=%s", neighbour.record.id, error)
            return False
        if all(found is not None for found in reply.found):
            return True
        await asyncio.sleep(PAUSE_SECONDS)
    return False

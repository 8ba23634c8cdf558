"""Replicas that went with their node are made again elsewhere, in the background.

Each store that has a replica knows how many are wanted. When the cluster has changed, the one of
those left that comes first for the entry (rendezvous hash) has another store take a copy: a little
at a time, behind everything else.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import islice

from ...index import PrefixIndex
from ...keys import EntryId
from .roster import Neighbour, Roster

logger = logging.getLogger(__name__)

MAX_WANTED = 100_000
"""Entries whose replicas are looked after; beyond that the oldest are not any more."""
PASS_SECONDS = 2.0
LOT_ENTRIES = 32
PAUSE_SECONDS = 0.05
"""After each lot."""

CopyTo = Callable[[Neighbour, Sequence[EntryId]], Awaitable[bool]]
Home = Callable[[EntryId, Sequence[str]], str]
"""Which of these nodes comes first for an entry."""


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

    def missing(
        self, entries: Iterable[EntryId], holders: Mapping[EntryId, set[str]], home: Home, node: str
    ) -> list[EntryId]:
        """Of these, which node `node` has to see to, for each replica that is missing once.
        `holders`: live nodes that have one, `node` among them."""
        due: list[EntryId] = []
        for entry in entries:
            replicas, there = self._wanted.get(entry, 0), holders[entry]
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
        copy_to: CopyTo,
    ) -> None:
        self._wanted = wanted
        self._roster = roster
        self._index = index
        self._node = node
        self._home = home
        self._copy_to = copy_to
        self._seen: frozenset[str] = frozenset()  # instances, when all was as it should be
        self.num_repaired = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(PASS_SECONDS)
            try:
                await self._look()
            except Exception:  # the task boundary
                logger.exception("repair_failed")

    async def _look(self) -> None:
        """Nothing to do while the cluster is as it was."""
        now = frozenset(each.record.instance for each in self._roster.neighbours())
        if now == self._seen:
            return
        entries = self._wanted.entries()
        is_whole = True
        for start in range(0, len(entries), LOT_ENTRIES):
            is_whole &= await self._repair(entries[start : start + LOT_ENTRIES])
        if is_whole:
            self._seen = now

    async def _repair(self, entries: Sequence[EntryId]) -> bool:
        """False: another look is needed."""
        neighbours = {each.record.instance: each for each in self._roster.neighbours()}
        holders = {entry: self._holders(entry, neighbours) for entry in entries}
        by_node: dict[str, list[EntryId]] = defaultdict(list)
        candidates = [n.record.id for n in neighbours.values() if n.link.is_up]
        is_whole = True
        for entry in self._wanted.missing(entries, holders, self._home, self._node):
            free = [node for node in candidates if node not in holders[entry]]
            if free:
                chosen = self._home(entry, free)
                holders[entry].add(chosen)
                by_node[chosen].append(entry)
            else:
                is_whole = False
        for neighbour in neighbours.values():
            if lot := by_node.get(neighbour.record.id):
                is_made = await self._copy_to(neighbour, lot)
                self.num_repaired += len(lot) if is_made else 0
                is_whole &= is_made
                await asyncio.sleep(PAUSE_SECONDS)
        return is_whole

    def _holders(self, entry: EntryId, neighbours: Mapping[str, Neighbour]) -> set[str]:
        """Nodes, ours among them."""
        held = {instance for instance, _ in self._index.holders(entry)}
        return {self._node, *(neighbours[each].record.id for each in held & neighbours.keys())}

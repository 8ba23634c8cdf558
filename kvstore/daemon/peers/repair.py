"""Replicas are made in the background: of blocks soon after their commit, and again of whatever
went with its node.

Each store that has a replica knows how many are wanted. When the cluster has changed, and stayed so
for a while, the one of those left that comes first for the entry (rendezvous hash) has another
store bring a copy: a little at a time, behind everything else there. A block goes where the one
before it went, so that one store has the chain.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import islice

from ...index import PrefixIndex
from ...keys import EntryId, shard_of
from .copies import holders_of
from .lots import Item, Lot, plan_lots
from .roster import Neighbour, Roster

logger = logging.getLogger(__name__)

MAX_WANTED = 100_000
"""Entries whose replicas are looked after; beyond that the oldest are not any more."""
PASS_SECONDS = 2.0
LONGEST_PASS_SECONDS = 60.0
"""Between passes that leave something to be done, each twice as long after the one before."""
LOT_ENTRIES = 32
MAX_HASTENED = 16384
"""Entries whose replicas are made soon; beyond that the oldest wait for a pass."""
PAUSE_SECONDS = 0.05
"""After each lot."""

Home = Callable[[EntryId, Sequence[str]], str]
"""Which of these nodes comes first for an entry."""
LiesHere = Callable[[Sequence[EntryId]], list[Item]]
"""Those of them that this node has, in whatever tier."""
Replicate = Callable[[Neighbour, Lot, int], Awaitable[bool]]
"""See `PeerCopies.replicate`."""


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
    """`run` works until its task is cancelled."""

    def __init__(
        self,
        wanted: WantedReplicas,
        roster: Roster,
        index: PrefixIndex,
        *,
        node: str,
        home: Home,
        lies_here: LiesHere,
        replicate: Replicate,
    ) -> None:
        self.wanted = wanted
        self._roster = roster
        self._index = index
        self._node = node
        self._home = home
        self._lies_here = lies_here
        self._replicate = replicate
        self._failed: set[str] = set()  # node ids that took no copy, in the cluster as it is
        self._hastened: dict[EntryId, None] = {}
        self._num_making = 0
        self._is_hastened = asyncio.Event()
        self._working = asyncio.Lock()
        self._is_whole = True
        self.num_repaired = 0
        self.num_made = 0  # for the first time

    @property
    def num_due(self) -> int:
        """Entries whose first replicas are being made, or about to be."""
        return len(self._hastened) + self._num_making

    def hasten(self, entries: Iterable[EntryId]) -> None:
        """What these lack is made soon, not only once the cluster changes."""
        self._hastened.update(dict.fromkeys(entries))
        for entry in list(islice(self._hastened, max(0, len(self._hastened) - MAX_HASTENED))):
            del self._hastened[entry]
            self._is_whole = False
        self._is_hastened.set()

    def holders(self, item: Item) -> set[str]:
        """Nodes that have it, as far as is known; ours is taken to be one."""
        nodes = {each.record.instance: each.record.id for each in self._roster.neighbours()}
        held = holders_of(self._index, item)
        return {self._node, *(nodes[each] for each in held & nodes.keys())}

    async def run(self) -> None:
        """Nothing to do while the cluster is as it was when all was as it should be; nothing is
        done while it changes."""
        seen, pause = self._instances(), PASS_SECONDS
        while True:
            await asyncio.sleep(pause)
            now = self._instances()
            if now != seen:
                seen, pause, self._is_whole = now, PASS_SECONDS, False
                self._failed.clear()
            elif not self._is_whole:
                await self._pass()
                pause = PASS_SECONDS if self._is_whole else min(2 * pause, LONGEST_PASS_SECONDS)

    async def run_hastened(self) -> None:
        """What is hastened, as it comes. What fails is left to the passes."""
        while True:
            await self._is_hastened.wait()
            self._is_hastened.clear()
            while self._hastened:
                entries = list(islice(self._hastened, LOT_ENTRIES))
                for entry in entries:  # one that is hastened meanwhile has its turn again
                    del self._hastened[entry]
                self._num_making = len(entries)
                self.num_made += await self._try_to_repair(entries)
                self._num_making = 0

    def _instances(self) -> frozenset[str]:
        return frozenset(each.record.instance for each in self._roster.neighbours())

    async def _pass(self) -> None:
        entries, self._is_whole = self.wanted.entries(), True
        for start in range(0, len(entries), LOT_ENTRIES):
            self.num_repaired += await self._try_to_repair(entries[start : start + LOT_ENTRIES])
            await asyncio.sleep(0)  # let clients have a turn

    async def _try_to_repair(self, entries: Sequence[EntryId]) -> int:
        try:
            async with self._working:
                return await self._repair(entries)
        except Exception:  # the task boundary
            logger.exception("repair_failed")
            self._is_whole = False
            return 0

    async def _repair(self, entries: Sequence[EntryId]) -> int:
        """How many replicas were made. What could not be made is left to another pass."""
        num_made = 0
        for (node, replicas), items in self._due(entries).items():
            neighbour = next((n for n in self._roster.neighbours() if n.record.id == node), None)
            for lot in plan_lots(self._with_leads(items, node)):
                if neighbour is None or not await self._replicate(neighbour, lot, replicas):
                    self._failed.add(node)
                    self._is_whole = False
                    break
                num_made += sum(item in items for item in lot.items)
                await asyncio.sleep(PAUSE_SECONDS)
        return num_made

    def _due(self, entries: Sequence[EntryId]) -> dict[tuple[str, int], list[Item]]:
        """What this node has to have which node take: by that node and how many are wanted."""
        items = {item.entry: item for item in self._lies_here(entries)}
        holders = {entry: self.holders(item) for entry, item in items.items()}
        up = {each.record.id for each in self._roster.neighbours() if each.link.is_up}
        due: dict[tuple[str, int], list[Item]] = defaultdict(list)
        for entry in self.wanted.missing(holders, self._home, self._node):
            free = up - holders[entry]
            if not free:
                self._is_whole = False
                continue
            able = free - self._failed or free
            item, parent = items[entry], _parent_of(items[entry])
            if parent is not None:
                with_parent = holders.get(parent.entry) or self.holders(parent)
                able = able & with_parent or able
            chosen = self._home(entry, sorted(able))
            holders[entry].add(chosen)
            due[chosen, self.wanted.of(entry)].append(item)
        return due

    def _with_leads(self, items: Sequence[Item], node: str) -> list[Item]:
        """And the blocks before them that the node has, so that it knows what follows what."""
        parents = {p.entry: p for p in map(_parent_of, items) if p is not None}
        leads = self._lies_here([e for e in parents if node in self.holders(parents[e])])
        return list({item.entry: item for item in (*leads, *items)}.values())


def _parent_of(item: Item) -> Item | None:
    """The same shard of the block before it."""
    if not item.parent:
        return None
    return Item(EntryId(b"k" + item.parent + shard_of(item.entry)), item.namespace, 0)

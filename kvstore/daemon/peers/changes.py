"""Changes of string entries (replaces, removals, puts with replicas) and removals of blocks, one
after another for each key, whichever store they are asked of.

  fence here ─► at the key's home ─► at all others ─► nobody joined ─► apply here ─► release all
                each fence: drop the entry, take in no copy of it until released

Two changes of one key meet at its home first (the live store whose id hashes highest with the key),
and in any case at each other's own fence: one of them is refused, gives back what it took, and
tries again. So when a change is applied, no other store holds an older value or can come to hold
one, and none is being changed elsewhere. A store that cannot be reached might, and so might one
that a store which is fenced knows and the changing one does not: then the change fails, retryable,
naming it. A store that is away, its record gone, is barred: it forgets what it has before it serves
again (of strings daemon/absences.py, of blocks daemon/removals.py).
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import compress

from blake3 import blake3

from ... import wire
from ...errors import Busy, StoreError, StoreTimeout, StoreUnavailable
from ...keys import EntryId, is_block
from ...store import Store
from ..removals import BlockRemovals
from ..sources import Apply, Fail, Spread
from .block_source import RemoteCopies
from .fences import Fences
from .repair import Repair
from .roster import Neighbour, Roster
from .tasks import TaskGroup

logger = logging.getLogger(__name__)

CHANGE_SECONDS = 3.0
"""For all fences of one change."""
FENCE_SECONDS = 10.0
"""How long a fence outlives a holder that never releases it."""
ASK_SECONDS = 2.0
RETRY_SECONDS = 0.02
NamespacesOf = Callable[[EntryId], set[bytes]]
"""Digests of those that a block (b"k" + key) is of, as far as is known: one, or none."""
Bar = Callable[[Collection[str]], None]
"""See `Absences.bar`."""
COPY_SECONDS = 2.0
COPY_ASK_SECONDS = 1.25
"""For a store to take a copy, or to say that it is still coming (it looks for 1 s): one that does
not is silent, and another is asked."""
COPY_RETRY_SECONDS = 0.01


def home_of(entry: EntryId, nodes: Sequence[str]) -> str:
    """Rendezvous hash: a node that comes or goes moves only its own keys."""
    return max(nodes, key=lambda node: (blake3(node.encode() + b"\0" + entry).digest(8), node))


class ClusterChanges:
    """See `EntryChanges`."""

    def __init__(
        self,
        store: Store,
        roster: Roster,
        fences: Fences,
        tasks: TaskGroup,
        *,
        bar: Bar,
        removals: BlockRemovals,
        namespaces_of: NamespacesOf,
        repair: Repair,
        copies: RemoteCopies,
    ) -> None:
        self._store = store
        self._bar = bar
        self._removals = removals
        self._namespaces_of = namespaces_of
        self._repair = repair
        self._copies = copies
        self._wanted = repair.wanted
        self._roster = roster
        self._fences = fences
        self._tasks = tasks
        self._instance = str(store.instance)
        self._node = store.instance.node
        self._last_change = 0
        self._rng = random.Random(self._instance)  # jitter only

    def check_writable(self, entries: Sequence[EntryId]) -> None:
        self._fences.check(entries, self._instance, time.monotonic())

    def fence(
        self, entries: Sequence[EntryId], holder: str, seconds: float, known: Sequence[str]
    ) -> None:
        self._check_is_store(holder)
        self._check_known(known)
        if any(map(is_block, entries)):
            self._removals.check_settled()
        self._forget_wanted(entries)
        now = time.monotonic()
        self._fences.take(entries, holder, now + seconds, now)

    def unfence(
        self, entries: Sequence[EntryId], holder: str, numbers: Mapping[bytes, int]
    ) -> None:
        self._check_is_store(holder)
        self._fences.release(entries, holder)
        if numbers:
            self._tasks.start(self._removals.note(numbers))

    def _check_is_store(self, holder: str) -> None:
        if self._roster.find(holder) is None:
            raise Busy(f"{holder[:200]} is no store of this cluster, as far as is known yet")

    def _forget_wanted(self, entries: Sequence[EntryId]) -> None:
        for entry in entries:
            self._wanted.forget(self._store.ids_of(entry) if is_block(entry) else [entry])

    def _check_known(self, stores: Sequence[str]) -> None:
        """Raises Busy unless all that we might take a copy from are among these; an older store
        names none."""
        for each in self._roster.neighbours():
            if stores and each.record.instance not in stores:
                raise Busy(
                    f"store {each.record.id} may hold a copy, and who changes it does not know it "
                    "yet: retry later"
                )

    def check_settled(self) -> None:
        self._removals.check_settled()

    def check_replicas(self, replicas: int) -> None:
        live = len(self._roster.neighbours()) + 1
        if replicas > live:
            raise StoreUnavailable(
                f"replicas is {replicas}; {live} stores are in the cluster now: ask for fewer or "
                "start more"
            )

    def change(
        self,
        entries: Sequence[EntryId],
        apply: Apply,
        fail: Fail,
        *,
        namespaces: Collection[bytes] = (),
    ) -> None:
        try:
            self._tasks.check_room()
        except Busy as busy:
            fail(busy)
        else:
            self._tasks.start(self._change(entries, namespaces, apply, fail))

    def want(self, entries: Sequence[EntryId], replicas: int) -> None:
        self._wanted.want(entries, replicas)

    def replicate(self, entries: Sequence[EntryId], replicas: int) -> None:
        self._wanted.want(entries, replicas)
        self._repair.hasten(entries)

    def take_replicas(self, entries: Sequence[EntryId], replicas: int) -> None:
        if self._copies == "drop":
            raise StoreUnavailable(
                f"store {self._node} keeps no blocks that it reads from others, so it can take no "
                "replicas: start it with --remote-copies keep"
            )
        self._wanted.want(entries, replicas)

    def spread(self, entries: Sequence[EntryId], replicas: int, then: Spread) -> None:
        self._wanted.want(entries, replicas)
        self._tasks.start(self._spread(entries, replicas, then))

    # -- changing ---------------------------------------------------------------------

    async def _change(
        self, entries: Sequence[EntryId], namespaces: Collection[bytes], apply: Apply, fail: Fail
    ) -> None:
        concerned = self._concerned(entries, namespaces)
        self._last_change += 1
        holder = f"{self._instance}#{self._last_change}"
        deadline = time.monotonic() + CHANGE_SECONDS
        dropped: set[EntryId] = set()  # by every try
        while True:
            asked: list[Neighbour] = []
            numbers: dict[bytes, int] = {}
            try:
                await self._fence_all(entries, holder, asked, dropped)
                await self._settle_absent(entries, concerned, asked, numbers)
                if time.monotonic() > deadline:
                    raise StoreTimeout(f"the other stores took over {CHANGE_SECONDS:g} s to agree")
                self._forget_wanted(entries)
                apply(dropped)
                return
            except Busy as error:
                pause = RETRY_SECONDS * self._rng.uniform(0.5, 1.5)
                if time.monotonic() + pause > deadline:
                    fail(error)
                    return
            except StoreError as error:
                fail(error)
                return
            finally:
                self._release(entries, holder, asked, numbers)
            await asyncio.sleep(pause)

    async def _fence_all(
        self,
        entries: Sequence[EntryId],
        holder: str,
        asked: list[Neighbour],
        dropped: set[EntryId],
    ) -> None:
        """Adds to `dropped` what went elsewhere. Raises Busy when another change has one of the
        entries, StoreUnavailable and StoreTimeout naming who could not be asked."""
        if any(map(is_block, entries)):
            self._removals.check_settled()
        now = time.monotonic()
        self._fences.take(entries, holder, now + FENCE_SECONDS, now)
        neighbours = {each.record.id: each for each in self._roster.neighbours()}
        for each in neighbours.values():
            _check_reachable(each)
        agreed = {each.record.instance for each in neighbours.values()}
        nodes = [self._node, *neighbours]
        fence = wire.Remove(list(entries), FENCE_SECONDS, [self._instance, *sorted(agreed)])
        homes = sorted({home_of(entry, nodes) for entry in entries} - {self._node})
        for home in homes:
            await _fence_at(neighbours.pop(home), fence, asked, dropped)
        others = [_fence_at(each, fence, asked, dropped) for each in neighbours.values()]
        results = await asyncio.gather(*others, return_exceptions=True)
        for result in sorted(results, key=lambda r: isinstance(r, Busy)):
            if result is not None:
                raise result

    async def _settle_absent(
        self,
        entries: Sequence[EntryId],
        namespaces: Collection[bytes],
        asked: Sequence[Neighbour],
        numbers: dict[bytes, int],
    ) -> None:
        """Who did not agree forgets what was changed before it serves again, or is known by now: a
        store that joins after this last look at the membership has nothing of it. Raises
        StoreUnavailable and StoreTimeout while the membership cannot be reached, Busy when somebody
        joined. `numbers` are this removal's at those who were there: written down here before that
        look, since nothing may take its time between the look and the change."""
        agreed = {each.record.instance for each in asked}
        try:
            if not all(map(is_block, entries)):
                nodes = [self._node, *(each.record.id for each in asked)]
                await asyncio.to_thread(self._bar, nodes)
            if namespaces:
                numbers.update(await self._removals.count(namespaces))
                await self._removals.note(numbers)
            await self._roster.look()
        except OSError as error:
            raise StoreUnavailable(f"the membership took no note of the change: {error}") from error
        if any(each.record.instance not in agreed for each in self._roster.neighbours()):
            raise Busy("a store joined the cluster meanwhile; retry later")

    def _release(
        self,
        entries: Sequence[EntryId],
        holder: str,
        asked: Sequence[Neighbour],
        numbers: Mapping[bytes, int],
    ) -> None:
        self._fences.release(entries, holder)
        message = wire.Remove(
            list(entries), 0.0, namespaces=[*numbers], numbers=[*numbers.values()]
        )
        for neighbour in asked:
            neighbour.link.tell(message)

    def _concerned(
        self, entries: Sequence[EntryId], namespaces: Collection[bytes]
    ) -> Collection[bytes]:
        """Namespaces of the blocks among these: those that were named, else those that are found,
        which takes a look at each block."""
        if namespaces:
            return namespaces
        return sorted(set().union(*map(self._namespaces_of, filter(is_block, entries))))

    # -- replicas ---------------------------------------------------------------------

    async def _spread(self, entries: Sequence[EntryId], replicas: int, then: Spread) -> None:
        copies = 0
        try:
            neighbours = {each.record.id: each for each in self._roster.neighbours()}
            while neighbours and copies < replicas - 1:
                nearest = home_of(entries[0], list(neighbours))
                copies += await _copy_to(neighbours.pop(nearest), entries, replicas)
        finally:
            then(copies + 1)


async def _fence_at(
    neighbour: Neighbour, fence: wire.Remove, asked: list[Neighbour], dropped: set[EntryId]
) -> None:
    asked.append(neighbour)
    reply = await neighbour.link.ask(fence, wire.CountReply, timeout_s=ASK_SECONDS)
    removed = reply.removed or b"\1" * reply.count  # an older store tells only how many
    dropped.update(EntryId(entry) for entry in compress(fence.entries, removed))


async def _copy_to(neighbour: Neighbour, entries: Sequence[EntryId], replicas: int) -> bool:
    """Has a peer look the entries up until it found them all: it brings them from here, once our
    events told it of them. It is told how many `replicas` are wanted."""
    deadline = time.monotonic() + COPY_SECONDS
    message = wire.Lookup(list(entries), replicas=replicas)
    while time.monotonic() < deadline:
        try:
            reply = await neighbour.link.ask(message, wire.LookupReply, timeout_s=COPY_ASK_SECONDS)
        except StoreError as error:
            logger.info("copy_failed peer=%s reason=%s", neighbour.record.id, error)
            return False
        if all(found is not None for found in reply.found):
            return True
        await asyncio.sleep(COPY_RETRY_SECONDS)
    return False


def _check_reachable(neighbour: Neighbour) -> None:
    """Raises StoreUnavailable, and Busy while its first connection is under way."""
    link = neighbour.link
    if not link.is_up:
        error = StoreUnavailable if link.was_up else Busy
        raise error(f"store {neighbour.record.id} may hold a copy and is away: {link.detail}")

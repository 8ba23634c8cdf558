"""All that a daemon has to do with its peers, put together, and taken apart in the right order."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import msgspec

from moontide.transfer import SegmentRegistry, TlsEndpoint, TransferServer
from moontide.transfer.engine import Latency

from ... import wire
from ...errors import StoreError
from ...following import event_session
from ...index import PrefixIndex
from ...keys import BlockKey, EntryId, block_key_of
from ...membership import Membership
from ...nvme import NvmeLocation
from ...store import Store
from ..counters import TransportCounters
from ..removals import BlockRemovals
from ..sources import BlockSource, EntryChanges, HandOffSource, PeerEntries
from .block_source import PeerBlockSource, RemoteCopies
from .changes import Bar, ClusterChanges, home_of
from .connection import LinkIdentity
from .copies import PeerCopies
from .entry_source import PeerEntrySource
from .fences import Fences
from .filling import FillCounters, FillTools, FloorOf
from .flow import FlowLimit
from .hand_offs import HandOffs
from .link import PeerLink
from .lots import Item
from .rails import open_engine
from .reads import PoolReads
from .repair import Repair, WantedReplicas
from .roster import Roster
from .tasks import TaskGroup

IN_FLIGHT_BYTES = 64 << 20
"""On their way into our pool at once, from all peers."""
VERIFY_THREADS = 2
FLOORS_VERSION = 2
"""Of the wire, from which on peers know of floors."""
FLOOR_SECONDS = 1.0
"""For a peer to read the floors."""
MAX_INDEXED_BLOCKS = 2_000_000
MAX_INDEXED_STRINGS = 500_000
Locate = Callable[[bytes], Sequence[NvmeLocation]]
"""See `Tiering.locate_key`."""


class PeerReport(msgspec.Struct, frozen=True):
    """The peers as this daemon sees them now, and what came from them."""

    known: list[str]  # node ids
    up: list[str]
    unreadable: list[str]  # up, but reading their pools fails
    indexed_blocks: int
    filling: int  # tasks
    in_flight_bytes: int
    filled_entries: int
    failed_entries: int
    dropped_entries: int  # nobody wanted them any more
    corrupt_extents: int
    transfers: list[Latency]  # of layer extents from peers' pools, and larger slices' pieces
    copied_entries: int = 0  # of ours that other stores were had to take
    copied_bytes: int = 0
    failed_copies: int = 0
    copies_left: int = 0  # of the runs under way
    repaired_entries: int = 0  # replicas made again
    wanted_replicas: int = 0  # entries that lie here, or did, of which more than one is wanted
    due_replicas: int = 0  # blocks whose replicas are about to be made
    made_replicas: int = 0  # of blocks, for the first time
    remote_copies: RemoteCopies = "keep"


class Replicas(NamedTuple):
    """Of one entry: how many are wanted (0: nobody said), and the nodes that have one."""

    wanted: int
    nodes: list[str]


class FloorsTold(NamedTuple):
    """Node ids. Those `away` read them when they are back, and are asked for no blocks before."""

    in_force: list[str]
    away: list[str]


class Peers:
    """Made before anything is served; `start` and `close` in the loop that owns the store. Takes
    over the listener; close it before the store."""

    def __init__(
        self,
        store: Store,
        membership: Membership,
        *,
        token: str,
        listener: socket.socket,
        copies: RemoteCopies,
        rails: Sequence[str] = (),
        tls: TlsEndpoint | None = None,
    ) -> None:
        self._remote_copies = copies
        self._cards = rails
        self._tls = tls
        self._store = store
        self._membership = membership
        self._token = token
        self._index = PrefixIndex(MAX_INDEXED_BLOCKS, MAX_INDEXED_STRINGS)
        self._counters = FillCounters()
        self._flow = FlowLimit(IN_FLIGHT_BYTES)
        self._tasks = TaskGroup()
        self._fences = Fences()
        self._server = TransferServer(
            listener,
            token=token.encode(),
            instance=str(store.instance),
            segments=_pool_segments(store),
            tls=tls,
        )

    def start(
        self, floor_of: FloorOf, bar: Bar, removals: BlockRemovals, locate: Locate | None
    ) -> None:
        """Serves the pool, and looks for the others. `locate`: what lies on disk here."""
        loop = asyncio.get_running_loop()
        store = self._store
        self._locate = locate
        self._engine = open_engine(self._token, store.instance, cards=self._cards, tls=self._tls)
        self._reads = PoolReads(self._engine, loop)
        self._verifiers = ThreadPoolExecutor(VERIFY_THREADS, thread_name_prefix="verify")
        self._session = event_session(self._token)
        self._roster = Roster(
            self._membership,
            LinkIdentity(str(store.instance), self._token.encode(), self._tls),
            node=store.instance.node,
            index=self._index,
            engine=self._engine,
            session=self._session,
        )
        tools = FillTools(store, self._reads, self._flow, self._verifiers, self._counters, floor_of)
        self.blocks: BlockSource = PeerBlockSource(
            tools,
            self._roster,
            self._index,
            self._tasks,
            self._fences,
            copies=self._remote_copies,
        )
        self._strings = PeerEntrySource(tools, self._roster, self._index, self._tasks, self._fences)
        self.entries: PeerEntries = self._strings
        self.copies = PeerCopies(store, self._roster, self._index, floor_of)
        self.hand_offs: HandOffSource = HandOffs(tools, self._roster, self._tasks)
        self._start_changes(bar, removals)
        self._server.start()
        self._roster.start()

    def _start_changes(self, bar: Bar, removals: BlockRemovals) -> None:
        """Of what lies at several stores."""
        self._repair = Repair(
            WantedReplicas(),
            self._roster,
            self._index,
            node=self._store.instance.node,
            home=home_of,
            lies_here=self._those_here,
            replicate=self.copies.replicate,
        )
        self.changes: EntryChanges = ClusterChanges(
            self._store,
            self._roster,
            self._fences,
            self._tasks,
            bar=bar,
            removals=removals,
            namespaces_of=self._namespaces_of,
            repair=self._repair,
            copies=self._remote_copies,
        )
        self._repairing = (
            asyncio.create_task(self._repair.run(), name="replica-repair"),
            asyncio.create_task(self._repair.run_hastened(), name="replicas-hastened"),
        )

    def joined(self) -> None:
        """Our record lies in the membership: the others come to know of us."""
        self._strings.joined()

    def left(self) -> None:
        """It may not, until `joined`: nothing that others may change without us is brought."""
        self._strings.left()

    async def tell_floors(self) -> FloorsTold:
        """Has every peer read the floors in the membership."""
        neighbours = self._roster.neighbours()
        told = await asyncio.gather(*(_tell_floors(each.link) for each in neighbours))
        names = [each.record.id for each in neighbours]
        return FloorsTold(
            [name for name, is_told in zip(names, told, strict=True) if is_told],
            [name for name, is_told in zip(names, told, strict=True) if not is_told],
        )

    async def close(self) -> None:
        """Ends every fill; when it returns, nobody touches the pool for a peer any more."""
        for repairing in self._repairing:
            repairing.cancel()
        await asyncio.wait(self._repairing)
        await self._tasks.close()
        await self._roster.close()
        await self._session.close()
        self._verifiers.shutdown()
        await asyncio.gather(
            asyncio.to_thread(self._engine.close), asyncio.to_thread(self._server.close)
        )

    def transfers(self) -> TransportCounters:
        """What went over TCP so far, at both ends of it: read from peers, and by peers."""
        own, served = self._engine.counters(), self._server.report().moved
        return TransportCounters(
            bytes_in=own.bytes_in + served.bytes_in,
            bytes_out=own.bytes_out + served.bytes_out,
            slices_done=own.slices_done + served.slices_done,
            slices_failed=own.slices_failed + served.slices_failed,
        )

    def report(self) -> PeerReport:
        neighbours = self._roster.neighbours()
        return PeerReport(
            known=[neighbour.record.id for neighbour in neighbours],
            up=[neighbour.record.id for neighbour in neighbours if neighbour.link.is_up],
            unreadable=[
                neighbour.record.id
                for neighbour in neighbours
                if neighbour.link.is_up and not neighbour.is_readable
            ],
            transfers=self._engine.latencies(),
            indexed_blocks=self._index.num_blocks,
            filling=len(self._tasks),
            in_flight_bytes=self._flow.used_bytes,
            filled_entries=self._counters.filled_entries,
            failed_entries=self._counters.failed_entries,
            dropped_entries=self._counters.dropped_entries,
            corrupt_extents=self._counters.corrupt_extents,
            copied_entries=self.copies.counters.entries,
            copied_bytes=self.copies.counters.num_bytes,
            failed_copies=self.copies.counters.failed,
            copies_left=self.copies.counters.left,
            repaired_entries=self._repair.num_repaired,
            wanted_replicas=len(self._repair.wanted),
            due_replicas=self._repair.num_due,
            made_replicas=self._repair.num_made,
            remote_copies=self._remote_copies,
        )

    def replicas(self, entry: EntryId) -> Replicas | None:
        """None: it does not lie here."""
        item = self._item(entry)
        if item is None:
            return None
        return Replicas(self._repair.wanted.of(entry), sorted(self._repair.holders(item)))

    def _those_here(self, entries: Sequence[EntryId]) -> list[Item]:
        return [item for item in map(self._item, entries) if item is not None]

    def _namespaces_of(self, block: EntryId) -> set[bytes]:
        """Digests of those that a block is of, here or at others."""
        here = self._those_here(self._store.ids_of(block))
        on_disk = self._locate(block) if self._locate is not None else ()
        known = self._index.namespaces_of(BlockKey(block_key_of(block)))
        known.update(location.namespace for location in on_disk)
        return {*(item.namespace for item in here), *map(bytes.fromhex, known)}

    def _item(self, entry: EntryId) -> Item | None:
        info = self._store.info(entry, time.monotonic())
        if info is not None:
            parent = self._store.parent_of(entry)
            return Item(entry, bytes.fromhex(info.namespace), info.num_bytes, parent)
        for found in self._locate(entry) if self._locate is not None else ():
            return Item(entry, bytes.fromhex(found.namespace), found.length)
        return None


async def _tell_floors(link: PeerLink) -> bool:
    if link.version < FLOORS_VERSION:
        return False
    try:
        await link.ask(wire.ReadFloors(), wire.Ok, timeout_s=FLOOR_SECONDS)
    except StoreError:
        return False
    return True


def _pool_segments(store: Store) -> SegmentRegistry:
    """All of them, read-only."""
    segments = SegmentRegistry()
    for index in range(len(store.segment_sizes)):
        segments.add(index, store.segment_view(index))
    return segments

"""Where a lookup gets what this node's DRAM lacks: its own disk, then other nodes.

Whatever a source brings comes as a fill (ADR 0010): its place in DRAM is reserved by FILL_OWNER,
and from that moment on the block counts, while its layers arrive one by one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Protocol

from moontide.transfer.types import Priority

from ..errors import StoreError
from ..keys import BlockKey, EntryId
from ..layout import Shard
from ..store import BlocksFound, OwnerId

Then = Callable[[], None]
"""Runs once, in the loop: at once or later, at the deadline at the latest."""


@dataclass(frozen=True, slots=True)
class BlocksWanted:
    """A chain of blocks from its first on, and the shards its reader needs of each."""

    namespace: int
    keys: Sequence[BlockKey]
    coverage: Sequence[Shard]
    deadline: float  # monotonic seconds
    priority: Priority = Priority.NORMAL


@dataclass(frozen=True, slots=True)
class EntriesWanted:
    """String entries that do not lie in DRAM."""

    entries: Sequence[EntryId]
    deadline: float
    priority: Priority = Priority.NORMAL


class BlockSource(Protocol):
    def prepare(self, request: BlocksWanted, then: Then) -> None:
        """Reserves fills for what it can bring of the blocks that the store lacks
        (`Store.missing`), in order of the chain, then calls `then`. Never raises: what fails is
        not brought."""


class EntrySource(Protocol):
    def holds(self, entries: Sequence[EntryId]) -> list[bool]:
        """Which of these it could bring, as far as it knows."""

    def bring(self, request: EntriesWanted, then: Then) -> None:
        """Fills what it can, then calls `then`: what was filled is committed by then. Never
        raises."""


Found = Callable[[Collection[EntryId]], None]
"""Gets which there are; runs like `Then`."""


class PeerEntries(EntrySource, Protocol):
    def find(self, entries: Sequence[EntryId], then: Found) -> None:
        """Asks whoever may hold these, and brings nothing. Who does not answer soon has none. Never
        raises."""


Apply = Callable[[AbstractSet[EntryId]], None]
"""Makes a change here. Gets which entries went at other stores; runs once, in the loop, while no
other store has one or changes one."""
Fail = Callable[[StoreError], None]
Spread = Callable[[int], None]
"""Gets how many replicas there are."""


class EntryChanges(Protocol):
    """String entries changed, and blocks removed, in the whole cluster. Once a change is applied,
    no store hands out an older value, or the block."""

    def check_writable(self, entries: Sequence[EntryId]) -> None:
        """Raises Busy while another store changes one of these."""

    def fence(
        self, entries: Sequence[EntryId], holder: str, seconds: float, known: Sequence[str]
    ) -> None:
        """Another store, by its instance, changes these for so long. `known`: the stores
        (instances) that it asks. Raises Busy."""

    def unfence(
        self, entries: Sequence[EntryId], holder: str, numbers: Mapping[bytes, int]
    ) -> None:
        """It has changed them. `numbers`: see `BlockRemovals.count`."""

    def check_settled(self) -> None:
        """Raises Busy while blocks that lie here may have been removed without us: others, who
        know of us again, would bring them back."""

    def check_replicas(self, replicas: int) -> None:
        """Raises StoreUnavailable when there are fewer stores."""

    def change(
        self,
        entries: Sequence[EntryId],
        apply: Apply,
        fail: Fail,
        *,
        namespaces: Collection[bytes] = (),
    ) -> None:
        """Calls one of the two. `fail` gets a retryable error: a store that cannot be reached, or
        too many changes of the same entries at once. Blocks among them are removed in all of their
        shards; `namespaces`: all that these are of, or none, when those that are found count."""

    def want(self, entries: Sequence[EntryId], replicas: int) -> None:
        """So many replicas of these are wanted in all: one that goes with its store is made
        again."""

    def replicate(self, entries: Sequence[EntryId], replicas: int) -> None:
        """As `want`, of blocks that are here; other stores are soon had to take copies, as far as
        there are so many. Nobody waits for that."""

    def take_replicas(self, entries: Sequence[EntryId], replicas: int) -> None:
        """As `want`, of blocks that another store is about to have us bring. Raises
        StoreUnavailable where blocks of other stores are not kept."""

    def spread(self, entries: Sequence[EntryId], replicas: int, then: Spread) -> None:
        """Has other stores take copies of what is here, then calls `then`."""


@dataclass(frozen=True, slots=True)
class HandOff:
    """A FetchBlocks, checked. The last `num_request_scoped` of `keys` hash no content."""

    owner: OwnerId  # who asks, and then holds the blocks
    namespace: int
    keys: Sequence[BlockKey]
    coverage: Sequence[Shard]
    source: str  # instance
    pin_s: float
    timeout_s: float
    num_request_scoped: int


class HandOffSource(Protocol):
    def fetch(self, request: HandOff) -> BlocksFound:
        """Reserves every block that is not here, pins all for the asker, as far as there is room,
        and fills them in the background. Raises StoreUnavailable when the source is away, Busy,
        and what a lookup raises."""


ClearEverywhere = Callable[[bytes | None], Awaitable[int]]
"""Of a namespace (digest; b"": string entries), or everything, at all nodes: how many went here.
Raises StoreError."""


@dataclass(frozen=True, slots=True)
class Sources:
    """This node's own disk, and other nodes; None where there is none. Disk comes first, and peers
    ask each other for no more than that."""

    disk_blocks: BlockSource | None = None
    disk_entries: EntrySource | None = None
    peer_blocks: BlockSource | None = None
    peer_entries: PeerEntries | None = None
    hand_offs: HandOffSource | None = None
    changes: EntryChanges | None = None
    clear: ClearEverywhere | None = None
    is_member: Callable[[], bool] = lambda: True
    """False while this node's lease may have ended: others change string entries without it."""

    def blocks(self) -> list[BlockSource]:
        return [source for source in (self.disk_blocks, self.peer_blocks) if source]

    def local_blocks(self) -> list[BlockSource]:
        return [self.disk_blocks] if self.disk_blocks else []

    def local_entries(self) -> list[EntrySource]:
        return [self.disk_entries] if self.disk_entries else []

    def entries(self) -> list[EntrySource]:
        return [source for source in (self.disk_entries, self.peer_entries) if source]


NO_SOURCES = Sources()

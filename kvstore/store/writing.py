"""Writing into a store: reserve, fill, advance, commit or abort."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import compress, repeat

from ..errors import InvalidRequest
from ..keys import BlockKey, EntryId, Namespace
from ..layout import Shard
from ..types import Extent, IfExists, PutResult
from .checks import (
    MAX_ENTRY_TTL_SECONDS,
    check_chain,
    check_entries,
    check_if_exists,
    check_keys,
    check_pieces,
    check_same_length,
    check_ttl,
)
from .namespaces import Geometry
from .parts import StoreParts
from .refusals import NOT_ADMITTED
from .room import Batch
from .types import (
    ExtentCallback,
    LayerRun,
    Origin,
    OwnerId,
    Pieces,
    Purpose,
    ReserveResult,
    RunOptions,
    RunResult,
)


class StoreWriting(StoreParts):
    """Two-phase writes of clients, and fills: what the store itself brings into its DRAM."""

    def open_namespace(self, namespace: Namespace) -> int:
        """Number of the namespace here; equal namespaces give equal numbers."""
        return self._namespaces.open(namespace)

    def namespace(self, number: int) -> Namespace:
        """Raises InvalidRequest when it was not opened here."""
        return self._namespaces.get(number).namespace

    def reserve(
        self,
        owner: OwnerId,
        entries: Sequence[EntryId],
        sizes: Sequence[int],
        *,
        if_exists: IfExists = "keep",
        ttl_s: float | None = None,
        soft_pin: bool = False,
        shared_memory: bool = False,
        elsewhere: Collection[bytes] = (),
        replicas: int = 1,
        now: float,
    ) -> list[ReserveResult]:
        """Space for single-extent entries, one result an entry. EXISTS for `keep` and `error` when
        the entry is committed, or is one of those that lie `elsewhere`; FULL when nothing can be
        evicted; FAILED for a size no segment holds. Evicts as needed."""
        check_entries(entries, sizes)
        check_if_exists(if_exists)
        if ttl_s is not None:
            check_ttl("ttl_s", ttl_s, MAX_ENTRY_TTL_SECONDS)
        self._entries.expire_among(entries, now)
        batch = Batch(
            self._owners.get(owner),
            if_exists=if_exists,
            ttl_s=ttl_s,
            soft_pin=soft_pin,
            shared_memory=shared_memory,
            elsewhere=() if if_exists == "replace" else elsewhere,
            replicas=replicas,
        )
        return self._reservations.reserve(batch, entries, sizes, repeat(1, len(entries)), now)

    def reserve_blocks(
        self,
        owner: OwnerId,
        namespace: int,
        keys: Sequence[BlockKey],
        parent: bytes,
        shards: Sequence[Shard],
        *,
        shared_memory: bool,
        ttl_s: float | None = None,
        request_scoped: bool = False,
        replicas: int = 1,
        now: float,
    ) -> list[ReserveResult]:
        """Space for every (block, shard), block-major. `keys` are one chain whose first block
        follows `parent` (empty: a root). Blocks live for `ttl_s` from their commit; with
        `request_scoped`, which needs it, nobody is told of them. FULL, too, for what store
        admission turns away, and for a tenant over its cap."""
        check_chain(keys, shards, parent)
        _check_scope(request_scoped, ttl_s)
        opened, packed = self._namespaces.get(namespace), [shard.pack() for shard in shards]
        refused: frozenset[bytes] = frozenset()
        if not request_scoped:
            refused = self._admission.refused(opened.hex, keys, parent, packed)
        batch = Batch(
            self._owners.get(owner),
            namespace=opened.edition,
            ttl_s=ttl_s,
            shared_memory=shared_memory,
            parents=dict(zip(keys, [parent, *keys], strict=False)),
            request_scoped=request_scoped,
            replicas=replicas,
        )
        return self._reserve_shards(batch, keys, shards, now, refused)

    def reserve_fill(
        self,
        owner: OwnerId,
        namespace: int,
        keys: Sequence[BlockKey],
        parents: Sequence[bytes],
        shards: Sequence[Shard],
        *,
        origin: Origin,
        request_scoped: bool = False,
        ttl_s: float | None = None,
        now: float,
    ) -> list[ReserveResult]:
        """Space for (block, shard) that come from `origin`, block-major; `parents` names the block
        before each (empty: a root, or not known). Readers find them from now on and wait for their
        layers. EXISTS when committed or filling already; FULL beyond half of the tier, as for any
        client. Written like other reservations, by `owner` (FILL_OWNER)."""
        check_keys((*keys, *filter(None, parents)))
        check_chain(keys, shards)
        if len(parents) != len(keys):
            raise InvalidRequest(f"{len(parents)} parents for {len(keys)} blocks")
        _check_scope(request_scoped, ttl_s)
        batch = Batch(
            self._owners.get(owner),
            namespace=self._namespaces.get(namespace).edition,
            ttl_s=ttl_s,
            parents=dict(zip(keys, parents, strict=True)),
            request_scoped=request_scoped,
            origin=origin,
        )
        return self._reserve_shards(batch, keys, shards, now)

    def fill_geometry(self, namespace: int, shard: Shard) -> Geometry:
        """Bytes and extents of an entry of that shard: what a copy elsewhere must agree with."""
        return self._namespaces.get(namespace).geometry(shard.pack())

    def reserve_entry_fill(
        self,
        owner: OwnerId,
        entries: Sequence[EntryId],
        sizes: Sequence[int],
        *,
        origin: Origin,
        ends_at: float | None = None,
        soft_pin: bool = False,
        now: float,
    ) -> list[ReserveResult]:
        """As `reserve_fill`, for string entries. They are found once they are committed, and until
        `ends_at` (monotonic seconds), when what they are copies of ends."""
        check_entries(entries, sizes)
        batch = Batch(self._owners.get(owner), origin=origin, ends_at=ends_at, soft_pin=soft_pin)
        return self._reservations.reserve(batch, entries, sizes, repeat(1, len(entries)), now)

    def expect_checksums(
        self, owner: OwnerId, slot: int, generation: int, checksums: Sequence[int]
    ) -> None:
        """Announces the checksums of all extents of a reservation before they are written, so that
        readers verify what they get. Raises InvalidRequest (counted) unless it is the owner's."""
        self._reservations.announce_checksums(self._owners.get(owner), slot, generation, checksums)

    def _reserve_shards(
        self,
        batch: Batch,
        keys: Sequence[bytes],
        shards: Sequence[Shard],
        now: float,
        refused: frozenset[bytes] = frozenset(),
    ) -> list[ReserveResult]:
        opened = self._namespaces.get(batch.namespace)
        packed = [shard.pack() for shard in shards]
        shapes = [opened.geometry(shard) for shard in packed]
        opened.stored.update(dict.fromkeys(packed))
        entries = [b"k" + key + shard for key in keys for shard in packed]
        sizes = [shape.num_bytes for shape in shapes] * len(keys)
        extents = [shape.num_extents for shape in shapes] * len(keys)
        wanted = entries
        if refused:
            admitted = [entry not in refused for entry in entries]
            wanted = list(compress(entries, admitted))
            sizes = list(compress(sizes, admitted))
            extents = list(compress(extents, admitted))
        held = self._tenants.make_room(opened.tenant, wanted, sizes, now)
        if held is None:
            results = self._reservations.reserve(batch, wanted, sizes, extents, now)
        else:
            refusal = self._refusals.over_cap(opened.tenant, held)
            results = self._reservations.refuse(batch, wanted, refusal)
        if not refused:
            return results
        self._counters.not_admitted += len(refused)
        left = iter(results)
        return [NOT_ADMITTED if entry in refused else next(left) for entry in entries]

    def advance(
        self,
        owner: OwnerId,
        slots: Sequence[int],
        generations: Sequence[int],
        extent: int,
        checksums: Sequence[int],
    ) -> None:
        """Layer `extent` of each reservation is complete. Raises InvalidRequest on one that is
        not the owner's (counted), or out of order; then none has moved."""
        self._reservations.advance(self._owners.get(owner), slots, generations, extent, checksums)

    def advance_runs(self, owner: OwnerId, runs: Sequence[LayerRun]) -> None:
        """As `advance`, of any number of layers of each; one run a reservation. Watchers are told
        layer by layer."""
        self._reservations.advance_runs(self._owners.get(owner), runs)

    def commit(
        self,
        owner: OwnerId,
        slots: Sequence[int],
        generations: Sequence[int],
        checksums: Sequence[int],
        now: float,
    ) -> list[PutResult]:
        """Makes reservations visible: STORED; EXISTS (another was first, space is freed); FAILED
        (no such reservation of this owner, or extents missing). `checksums` for single-extent
        entries, empty when every extent was advanced."""
        return self._reservations.commit(
            self._owners.get(owner), slots, generations, checksums, now
        )

    def reserve_run(self, owner: OwnerId, num_bytes: int, now: float) -> ReserveResult:
        """A stretch of a segment granted to the owner's client, from which it cuts entries; it ends
        like any reservation, or with its last byte. FULL when the client gets no such segment."""
        return self._runs.reserve(self._owners.get(owner), num_bytes, now)

    def reserve_daemon_run(self, owner: OwnerId, num_bytes: int, now: float) -> ReserveResult:
        """As `reserve_run`, in the store's own segments, for what the owner sends it to write: it
        is never told of it."""
        return self._runs.reserve_for_daemon(self._owners.get(owner), num_bytes, now)

    def run_buffer(self, owner: OwnerId, slot: int, generation: int) -> memoryview:
        """A run's bytes, writable until what was cut off is committed. Raises InvalidRequest when
        it is over."""
        return self._runs.buffer(self._owners.get(owner), slot, generation)

    def end_run(self, owner: OwnerId, slot: int, generation: int) -> None:
        """The writer has stopped: frees what is left of a run, if anything."""
        self._runs.abort(self._owners.get(owner), slot, generation)

    def commit_run(
        self,
        owner: OwnerId,
        slot: int,
        generation: int,
        pieces: Pieces,
        options: RunOptions,
        now: float,
    ) -> RunResult:
        """Cuts string entries off a run and makes them visible: STORED; EXISTS as in `reserve`;
        FULL when there is no slot for one. Pieces lie in ascending order behind what was cut
        before; what is skipped or not stored is free again. Raises InvalidRequest, with nothing
        changed, on any other place, and (counted) unless the run is the owner's."""
        check_pieces(pieces)
        check_if_exists(options.if_exists)
        if options.ttl_s is not None:
            check_ttl("ttl_s", options.ttl_s, MAX_ENTRY_TTL_SECONDS)
        return self._runs.commit(self._owners.get(owner), slot, generation, pieces, options, now)

    def take_renewed(self) -> list[bytes]:
        """String entries that the last commit stored for a client: whatever other tiers hold of
        them is an older value."""
        renewed, self._reservations.renewed = self._reservations.renewed, []
        return renewed

    def abort(self, owner: OwnerId, slots: Sequence[int], generations: Sequence[int]) -> int:
        """The writer has stopped: frees the space at once. Unknown ones are counted, not errors.
        Returns how many ended."""
        requester = self._owners.get(owner)
        check_same_length(slots=slots, generations=generations)
        places = [*zip(slots, generations, strict=True)]
        left = [place for place in places if not self._runs.abort(requester, *place)]
        return len(places) - len(left) + self._reservations.abort(requester, left)

    def buffer(self, slot: int, generation: int) -> memoryview:
        """The entry's bytes in the pool, writable, of a reserved or committed entry. Valid while
        the entry is reserved or pinned; raises InvalidRequest when that generation is gone."""
        return self._contents.buffer(slot, generation)

    def reserved_buffer(self, owner: OwnerId, slot: int, generation: int) -> memoryview:
        """As `buffer`, for the writer of an open reservation. Raises InvalidRequest (counted) to
        anyone else."""
        self._reservations.check_open(self._owners.get(owner), slot, generation)
        return self._contents.buffer(slot, generation)

    def purpose(self, owner: OwnerId, slot: int, generation: int) -> Purpose | None:
        """What an open reservation of the owner is for; None for any other."""
        return self._reservations.purpose(self._owners.get(owner), slot, generation)

    def extents(self, slot: int, generation: int) -> list[Extent]:
        """Complete extents of a reserved or committed entry. Raises like `buffer`."""
        return self._contents.extents(slot, generation)

    def checksum(self, slot: int, extent: int) -> int:
        """Of a complete or announced extent of whatever is in the slot; 0 when not known."""
        return self._contents.checksum(slot, extent)

    def watch_extent(
        self, slot: int, generation: int, extent: int, callback: ExtentCallback
    ) -> Callable[[], None]:
        """Calls back once when the watermark passes `extent` or the reservation ends; at once when
        that is already so. Returns a function that cancels. Raises Busy beyond the bound."""
        return self._reservations.watch(slot, generation, extent, callback)


def _check_scope(request_scoped: bool, ttl_s: float | None) -> None:
    if ttl_s is not None:
        check_ttl("ttl_s", ttl_s, MAX_ENTRY_TTL_SECONDS)
    elif request_scoped:
        raise InvalidRequest("request_scoped without ttl_s; say how long such a block may live")

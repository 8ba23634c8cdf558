"""A machine that calls a store in any order, beside a model as large as a dict. After every step
the audit holds, what a lookup finds is what was put last, pinned bytes are untouched, and a
follower of the events knows exactly what is there."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from moontide.kvstore.errors import InvalidRequest, OutOfSpace
from moontide.kvstore.events import KvEvent
from moontide.kvstore.keys import BlockKey, EntryId, Namespace
from moontide.kvstore.layout import Group, KVLayout, Shard
from moontide.kvstore.store import EvictScope, PoolSettings, ReserveResult, Store
from moontide.kvstore.store.eviction import POLICIES, EvictionName
from moontide.kvstore.types import PutStatus, ReserveStatus
from moontide.transfer import checksum
from moontide.transfer.types import Instance

SEGMENT = 16 << 10
SIZES = st.sampled_from([0, 1, 16, 64, 65, 700, 4095, 4096, 5000, SEGMENT, SEGMENT + 1])
SEATS = st.integers(0, 3)
RARELY = st.integers(0, 9).map(lambda number: number == 0)
KEYS = st.sampled_from([EntryId(b"s%d" % index) for index in range(30)])
LAYERS = 2
LAYOUT = KVLayout((Group("full", num_layers=LAYERS, num_kv_heads=2, head_dim=4, dtype="float32"),))
WHOLE = LAYOUT.whole()
HEADS = tuple(Shard(0, (0, LAYERS), (head, head + 1)) for head in range(2))
CHAINS = [[BlockKey(b"%s-%014d" % (name, index)) for index in range(6)] for name in (b"a", b"b")]


class Writing:
    """A reservation the machine has not ended yet."""

    below_floor = False  # of its namespace, which was raised since

    def __init__(self, owner: int, entry: bytes, reserved: ReserveResult, mode: str) -> None:
        self.owner = owner
        self.entry = entry
        self.reserved = reserved
        self.mode = mode


class StoreMachine(RuleBasedStateMachine):
    writings: Bundle[Writing] = Bundle("writings")
    tickets: Bundle[bytes] = Bundle("tickets")

    @initialize(eviction=st.sampled_from(list(POLICIES)), entries=st.sampled_from([20, 1000]))
    def start(self, eviction: EvictionName, entries: int) -> None:
        pool = PoolSettings(
            dram_bytes=5 * SEGMENT,
            segment_bytes=SEGMENT,
            max_entries=entries,
            eviction=eviction,
            max_pin_ratio=0.5,
        )
        self.now = 10.0
        self.store = Store(pool, Instance("node", 1, bytes(16)), now=self.now)
        namespace = Namespace(weights_id="w", layout=LAYOUT, tokenizer_digest="t", block_tokens=4)
        self.namespace = self.store.open_namespace(namespace)
        self.digest = namespace.digest
        self.random = random.Random(7)
        self.clients = [Instance("client", index, bytes(16)) for index in range(3)]
        self.client_of: dict[int, Instance] = {}
        self.values: dict[bytes, bytes] = {}  # what was committed last; may have been evicted
        self.deadlines: dict[bytes, float] = {}
        self.held: dict[bytes, list[tuple[memoryview, bytes]]] = {}  # pinned bytes
        self.ends: dict[bytes, float] = {}  # of tickets
        self.block_writings: list[Writing] = []
        self.followed: dict[str, set[str]] = {}
        self.store.events.on_event(self.follow)
        self.next_owner = 0
        self.owners: dict[int, int] = {}
        for seat in range(4):
            self.connect(seat)

    def follow(self, event: KvEvent) -> None:
        if event.kind == "cleared":
            for namespace in [event.namespace] if event.namespace else list(self.followed):
                self.followed[namespace] = set()
        held = self.followed.setdefault(event.namespace, set())
        if event.kind == "stored":
            held |= set(event.entries)
        elif event.kind == "removed":
            assert set(event.entries) <= held
            held -= set(event.entries)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.held.clear()
            self.store.close()

    # -- connections ------------------------------------------------------------------

    def connect(self, seat: int) -> None:
        """Each seat is a connection; seats 0 and 3 are of one client."""
        client = self.clients[seat % len(self.clients)]
        self.next_owner += 1
        self.store.connect(self.next_owner, client)
        self.owners[seat] = self.next_owner
        self.client_of[self.next_owner] = client

    @rule(seat=SEATS, rarely=RARELY)
    def reconnect(self, seat: int, rarely: bool) -> None:
        if rarely:
            owner = self.owners[seat]
            self.forget_views(owner)
            self.store.disconnect(owner)
            del self.client_of[owner]
            self.connect(seat)

    @rule(client=st.integers(0, 2))
    def quiesce(self, client: int) -> None:
        self.store.client_quiesced(self.clients[client])

    @rule(client=st.integers(0, 2), rarely=RARELY)
    def exit(self, client: int, rarely: bool) -> None:
        if not rarely:
            return
        gone = self.clients[client]
        self.clients[client] = Instance("client", client, self.random.randbytes(16))
        seats = [seat for seat, owner in self.owners.items() if self.client_of[owner] == gone]
        for seat in seats:
            self.forget_views(self.owners[seat])
            del self.client_of[self.owners[seat]]
        self.store.client_exited(gone)
        for seat in seats:
            self.connect(seat)

    @rule()
    def return_segments(self) -> None:
        for client, segment in self.store.take_revocations(self.now):
            try:
                self.store.release_segment(client, segment)
            except InvalidRequest:
                assert client not in self.clients  # it exited meanwhile
                continue
            self.on_returned(client, segment)

    def on_returned(self, client: Instance, segment: int) -> None:
        """For machines that know more of what lay in it."""

    def forget_views(self, owner: int) -> None:
        for ticket in [t for t in self.held if t.startswith(b"view %d " % owner)]:
            del self.held[ticket]

    # -- writing ----------------------------------------------------------------------

    @rule(
        target=writings,
        seat=SEATS,
        entry=KEYS,
        size=SIZES,
        mode=st.sampled_from(["keep", "replace", "error"]),
        shared=st.booleans(),
        soft=st.booleans(),
        ttl_s=st.sampled_from([None, None, 5.0]),
    )
    def reserve(
        self,
        seat: int,
        entry: EntryId,
        size: int,
        mode: str,
        shared: bool,
        soft: bool,
        ttl_s: float | None,
    ) -> object:
        owner = self.owners[seat]
        writing = self.reserve_one(owner, entry, size, mode, shared, soft, ttl_s)
        return multiple() if writing is None else writing

    def reserve_one(
        self,
        owner: int,
        entry: EntryId,
        size: int,
        mode: str,
        shared: bool,
        soft: bool = False,
        ttl_s: float | None = None,
    ) -> Writing | None:
        (result,) = self.store.reserve(
            owner,
            [entry],
            [size],
            if_exists=mode,  # type: ignore[arg-type]  # one of the three names
            ttl_s=ttl_s,
            soft_pin=soft,
            shared_memory=shared,
            now=self.now,
        )
        if size > SEGMENT:
            assert result.status in (ReserveStatus.FAILED, ReserveStatus.EXISTS)
        if result.status is not ReserveStatus.RESERVED:
            return None
        self.store.buffer(result.slot, result.generation)[:] = self.random.randbytes(size)
        self.check_writable(owner, result)
        return Writing(owner, entry, result, mode if ttl_s is None else f"{mode} ttl")

    @rule(
        target=writings,
        seat=SEATS,
        chain=st.sampled_from(CHAINS),
        first=st.integers(0, 5),
        count=st.integers(1, 6),
        shards=st.sampled_from([WHOLE, HEADS, HEADS[:1]]),
        shared=st.booleans(),
    )
    def reserve_blocks(
        self,
        seat: int,
        chain: list[BlockKey],
        first: int,
        count: int,
        shards: tuple[Shard, ...],
        shared: bool,
    ) -> object:
        owner = self.owners[seat]
        keys = chain[first : first + count]
        parent = chain[first - 1] if first else b""
        results = self.store.reserve_blocks(
            owner, self.namespace, keys, parent, shards, shared_memory=shared, now=self.now
        )
        entries = [b"k" + key + shard.pack() for key in keys for shard in shards]
        assert len(results) == len(entries)
        writings = []
        for entry, result in zip(entries, results, strict=True):
            if result.status is ReserveStatus.RESERVED:
                data = self.store.buffer(result.slot, result.generation)
                data[:] = self.random.randbytes(len(data))
                self.check_writable(owner, result)
                writings.append(Writing(owner, entry, result, "keep"))
        self.block_writings += writings
        return multiple(*writings)

    def check_writable(self, owner: int, result: ReserveResult) -> None:
        client = self.client_of[owner]
        if result.writable:
            assert self.store.writable_descriptor(result.segment, client) > 0
        for other in self.clients:
            if other != client:
                with pytest.raises(InvalidRequest):
                    self.store.writable_descriptor(result.segment, other)

    @rule(seat=SEATS, first=st.integers(0, 29), sizes=st.lists(SIZES, min_size=1, max_size=6))
    def put_many(self, seat: int, first: int, sizes: list[int]) -> None:
        for index, size in enumerate(sizes):
            entry = EntryId(b"s%d" % ((first + index) % 30))
            shared = bool((first + index) % 2)
            writing = self.reserve_one(self.owners[seat], entry, size, "replace", shared)
            if writing is not None:
                self.finish(writing)

    @rule(writing=consumes(writings))
    def advance_and_commit(self, writing: Writing) -> None:
        self.finish(writing)

    def finish(self, writing: Writing) -> None:
        result = writing.reserved
        slots, generations = [result.slot], [result.generation]
        if writing.owner not in self.client_of:
            return
        try:
            data = self.store.buffer(result.slot, result.generation)
        except InvalidRequest:  # its segment was released, or its connection is gone
            data = None
        if data is None or self.store.audit().in_flight == 0:
            with_none = self.store.commit(writing.owner, slots, generations, [1], self.now)
            assert with_none[0].status is PutStatus.FAILED
            return
        if writing.entry[:1] == b"k":
            sums: list[int] = []
            for layer in range(LAYERS):
                piece = self.layer(data, layer)
                self.store.advance(writing.owner, slots, generations, layer, [checksum(piece)])
        else:
            sums = [checksum(data)]
        before = self.store.exists([EntryId(writing.entry)], self.now)[0]
        content = bytes(data)
        (put,) = self.store.commit(writing.owner, slots, generations, sums, self.now)
        if writing.below_floor:
            assert put.status is PutStatus.FAILED
            return
        if before and not writing.mode.startswith("replace"):
            assert put.status is PutStatus.EXISTS
            return
        assert put.status is PutStatus.STORED
        self.values[writing.entry] = content
        self.deadlines.pop(writing.entry, None)
        if writing.mode.endswith("ttl"):
            self.deadlines[writing.entry] = self.now + 5.0

    @staticmethod
    def layer(data: memoryview, layer: int) -> memoryview:
        stride = len(data) // LAYERS
        return data[layer * stride : (layer + 1) * stride]

    @rule(writing=consumes(writings))
    def abort(self, writing: Writing) -> None:
        if writing.owner in self.client_of:
            result = writing.reserved
            self.store.abort(writing.owner, [result.slot], [result.generation])

    # -- reading ----------------------------------------------------------------------

    @rule(
        target=tickets,
        seat=SEATS,
        entries=st.lists(KEYS, min_size=1, max_size=4),
        pin_s=st.sampled_from([None, 0, 3.0]),
    )
    def lookup(self, seat: int, entries: list[EntryId], pin_s: float | None) -> object:
        owner = self.owners[seat]
        try:
            found, ticket = self.store.lookup(owner, entries, pin_s, self.now)
        except OutOfSpace:
            return multiple()
        views = []
        for entry, located in zip(entries, found, strict=True):
            if located is not None:
                assert self.deadlines.get(entry, self.now + 1) > self.now
                data = self.store.buffer(located.slot, located.generation)
                assert data == self.values[entry]
                assert checksum(data) == located.checksum
                views.append((data, bytes(data)))
        return self.remember(owner, ticket, pin_s, views)

    @rule(
        target=tickets,
        seat=SEATS,
        chain=st.sampled_from(CHAINS),
        coverage=st.sampled_from([WHOLE, HEADS, HEADS[:1]]),
        pin_s=st.sampled_from([None, 0, 3.0]),
        pending=st.booleans(),
    )
    def lookup_blocks(
        self,
        seat: int,
        chain: list[BlockKey],
        coverage: tuple[Shard, ...],
        pin_s: float | None,
        pending: bool,
    ) -> object:
        owner = self.owners[seat]
        try:
            found = self.store.lookup_blocks(
                owner, self.namespace, chain, coverage, pin_s=pin_s, pending=pending, now=self.now
            )
        except OutOfSpace:
            return multiple()
        if not pending:
            assert len(found.blocks) == self.expected_prefix(chain, coverage)
        views = []
        for key, block in zip(chain, found.blocks, strict=False):
            for entry in block:
                data = self.store.buffer(entry.slot, entry.generation)
                if entry.extents == LAYERS and not pending:
                    assert data == self.values[b"k" + key + found.shards[entry.shard]]
                views.append((data, bytes(data)))
        return self.remember(owner, found.ticket, pin_s, views)

    def expected_prefix(self, chain: list[BlockKey], coverage: tuple[Shard, ...]) -> int:
        for index, key in enumerate(chain):
            whole, *heads = self.store.exists(
                [EntryId(b"k" + key + shard.pack()) for shard in (*WHOLE, *HEADS)], self.now
            )
            wanted = heads[:1] if coverage == HEADS[:1] else heads
            if not (whole or all(wanted)):
                return index
        return len(chain)

    def remember(
        self, owner: int, ticket: bytes, pin_s: float | None, views: list[tuple[memoryview, bytes]]
    ) -> object:
        assert bool(ticket) == (pin_s is not None and bool(views))
        if not ticket:
            return multiple()
        name = (b"view %d " % owner if pin_s == 0 else b"anyone 0 ") + ticket
        if pin_s:
            self.ends[name] = self.now + pin_s
        self.held[name] = views
        return name

    @rule(name=consumes(tickets), seat=SEATS)
    def unpin(self, name: bytes, seat: int) -> None:
        owner = self.owners[seat]
        kind, number, ticket = name.split(b" ", 2)
        mine = kind == b"anyone" or int(number) == owner
        if name in self.held and mine:
            self.store.unpin(owner, ticket)
            del self.held[name]
            self.ends.pop(name, None)
        else:
            with pytest.raises(InvalidRequest):
                self.store.unpin(owner, ticket)

    # -- ending -----------------------------------------------------------------------

    @rule(entry=KEYS)
    def remove(self, entry: EntryId) -> None:
        was = self.store.exists([entry], self.now)[0]
        assert self.store.remove([entry, entry], self.now) == int(was)
        assert self.store.exists([entry], self.now) == [False]

    @rule(which=st.sampled_from(["all", "strings", "blocks"]), rarely=RARELY)
    def clear(self, which: str, rarely: bool) -> None:
        if not rarely:
            return
        self.store.clear(
            self.digest if which == "blocks" else None,
            strings_only=which == "strings",
        )
        kinds = {"all": (b"s", b"k"), "strings": (b"s",), "blocks": (b"k",)}[which]
        assert not [entry for entry in self.committed() if entry.startswith(kinds)]

    @rule(num_bytes=st.sampled_from([None, 1, 5000]), dry_run=st.booleans())
    def evict(self, num_bytes: int | None, dry_run: bool) -> None:
        before = self.committed()
        scope = EvictScope(num_bytes=num_bytes, strings_only=True)
        eviction = self.store.evict(scope, self.now)
        evicted = eviction.takes
        if not dry_run:
            assert sum(eviction.carry_out()) == evicted.entries
        after = self.committed()
        assert len(before) - len(after) == (0 if dry_run else evicted.entries)

    @rule(seconds=st.sampled_from([0.1, 1.0, 6.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.store.expire(self.now)
        for name in [name for name, end in self.ends.items() if end <= self.now]:
            self.held.pop(name, None)
            del self.ends[name]

    # -- what always holds --------------------------------------------------------------

    def committed(self) -> list[bytes]:
        return list(self.snapshot_ids())

    def snapshot_ids(self) -> Iterator[bytes]:
        for event in self.store.events.snapshot().events:
            yield from map(bytes.fromhex, event.entries)

    @precondition(lambda self: hasattr(self, "store"))
    @invariant()
    def accounts_are_right(self) -> None:
        assert self.store.audit().differences == []

    @precondition(lambda self: hasattr(self, "store"))
    @invariant()
    def followers_know_what_is_there(self) -> None:
        followed = {bytes.fromhex(entry) for held in self.followed.values() for entry in held}
        assert followed == set(self.committed())

    @precondition(lambda self: hasattr(self, "store"))
    @invariant()
    def pinned_bytes_stay(self) -> None:
        for views in self.held.values():
            for data, content in views:
                assert data == content

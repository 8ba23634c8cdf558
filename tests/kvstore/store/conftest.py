"""A store with a clock and shorthand for whole puts, so that tests read as what they show."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

import pytest

from moontide.kvstore.keys import BlockKey, EntryId, Namespace, string_entry_id
from moontide.kvstore.layout import Group, KVLayout, Shard
from moontide.kvstore.store import FILL_OWNER, Origin, PoolSettings, ReserveResult, Store
from moontide.kvstore.store.types import BlocksFound
from moontide.kvstore.types import IfExists, PutResult, PutStatus, ReserveStatus, Tier
from moontide.transfer import Mapping, checksum
from moontide.transfer.types import Instance

SEGMENT_BYTES = 64 << 10
LAYOUT = KVLayout((Group("full", num_layers=3, num_kv_heads=2, head_dim=8, dtype="float32"),))
NUM_LAYERS = LAYOUT.groups[0].num_layers
FROM_DISK = Origin(Tier.NVME, "file")
TP2 = tuple(Shard(0, (0, 3), (head, head + 1)) for head in range(2))


def namespace_named(name: str) -> Namespace:
    return Namespace(weights_id=name, layout=LAYOUT, tokenizer_digest="t", block_tokens=4)


class Node:
    """One store, its clock, and connections numbered as they come."""

    def __init__(self, settings: PoolSettings) -> None:
        self.now = 1000.0
        self.store = Store(settings, Instance("node", 1, b"n" * 16), now=self.now)
        self.clients: dict[int, Instance] = {}
        """Of the owners there have been."""

    def connect(self, client: Instance | None = None) -> int:
        owner = len(self.clients) + 1
        self.clients[owner] = client or Instance.new("client")
        self.store.connect(owner, self.clients[owner])
        return owner

    def slot_table(self) -> memoryview:
        """As clients map it."""
        descriptor = os.dup(self.store.slot_table_descriptor)
        return Mapping(descriptor, self.store.slot_table_bytes).buffer

    def write(self, owner: int, reserved: ReserveResult, offset: int, data: bytes) -> None:
        """Into the granted segment that the owner's client has mapped."""
        descriptor = self.store.writable_descriptor(reserved.segment, self.clients[owner])
        num_bytes = self.store.segment_sizes[reserved.segment]
        memory = Mapping(os.dup(descriptor), num_bytes, writable=True).buffer
        memory[reserved.offset + offset :][: len(data)] = data

    def fill(self, reserved: ReserveResult, data: bytes) -> None:
        self.store.buffer(reserved.slot, reserved.generation)[:] = data

    def reserve(
        self, owner: int, key: str, num_bytes: int, *, shared_memory: bool = False
    ) -> ReserveResult:
        return self.store.reserve(
            owner, [string_entry_id(key)], [num_bytes], shared_memory=shared_memory, now=self.now
        )[0]

    def commit(self, owner: int, reserved: ReserveResult, data: bytes) -> PutResult:
        self.fill(reserved, data)
        return self.store.commit(
            owner, [reserved.slot], [reserved.generation], [checksum(data)], self.now
        )[0]

    def put(
        self,
        owner: int,
        key: str,
        data: bytes,
        *,
        if_exists: IfExists = "keep",
        ttl_s: float | None = None,
        soft_pin: bool = False,
        shared_memory: bool = False,
    ) -> ReserveStatus:
        reserved = self.store.reserve(
            owner,
            [string_entry_id(key)],
            [len(data)],
            if_exists=if_exists,
            ttl_s=ttl_s,
            soft_pin=soft_pin,
            shared_memory=shared_memory,
            now=self.now,
        )[0]
        if reserved.status is ReserveStatus.RESERVED:
            self.commit(owner, reserved, data)
        return reserved.status

    def get(self, owner: int, key: str) -> bytes | None:
        (found,), _ = self.store.lookup(owner, [string_entry_id(key)], None, self.now)
        return None if found is None else bytes(self.store.buffer(found.slot, found.generation))

    def pin(self, owner: int, key: str, pin_s: float = 0.0) -> bytes:
        _, ticket = self.store.lookup(owner, [string_entry_id(key)], pin_s, self.now)
        return ticket

    def has(self, *keys: str) -> list[bool]:
        return self.store.exists([string_entry_id(key) for key in keys], self.now)

    def reserve_blocks(
        self,
        owner: int,
        namespace: int,
        keys: Sequence[BlockKey],
        shards: Sequence[Shard],
        *,
        parent: bytes = b"",
        shared_memory: bool = False,
    ) -> list[ReserveResult]:
        return self.store.reserve_blocks(
            owner, namespace, keys, parent, shards, shared_memory=shared_memory, now=self.now
        )

    def put_blocks(
        self,
        owner: int,
        namespace: int,
        keys: Sequence[BlockKey],
        shards: Sequence[Shard],
        *,
        parent: bytes = b"",
        shared_memory: bool = False,
    ) -> list[ReserveResult]:
        """Reserves, writes every layer and commits; layer i of a block holds bytes i + 1."""
        results = self.reserve_blocks(
            owner, namespace, keys, shards, parent=parent, shared_memory=shared_memory
        )
        self.finish_blocks(
            owner, [result for result in results if result.status is ReserveStatus.RESERVED]
        )
        return results

    def reserve_fill(
        self,
        namespace: int,
        keys: Sequence[BlockKey],
        shards: Sequence[Shard],
        *,
        parent: bytes = b"",
        origin: Origin = FROM_DISK,
        **options: object,
    ) -> list[ReserveResult]:
        return self.store.reserve_fill(
            FILL_OWNER,
            namespace,
            keys,
            [parent, *keys[:-1]],
            shards,
            origin=origin,
            now=self.now,
            **options,  # type: ignore[arg-type]  # a test's own keywords
        )

    def finish_blocks(self, owner: int, reserved: Sequence[ReserveResult]) -> list[PutStatus]:
        """Writes every layer and commits."""
        for layer in range(NUM_LAYERS):
            self.write_layer(owner, reserved, layer)
        slots, generations = [r.slot for r in reserved], [r.generation for r in reserved]
        results = self.store.commit(owner, slots, generations, [], self.now)
        return [result.status for result in results]

    def write_layer(self, owner: int, reserved: Sequence[ReserveResult], layer: int) -> None:
        """All of `reserved` must be whole entries of LAYOUT, or single heads of it."""
        sums = []
        for result in reserved:
            data = self.store.buffer(result.slot, result.generation)
            stride = len(data) // NUM_LAYERS
            piece = data[layer * stride : (layer + 1) * stride]
            piece[:] = bytes([layer + 1]) * stride
            sums.append(checksum(piece))
        slots, generations = [r.slot for r in reserved], [r.generation for r in reserved]
        self.store.advance(owner, slots, generations, layer, sums)

    def lookup_blocks(
        self,
        owner: int,
        namespace: int,
        keys: Sequence[BlockKey],
        coverage: Sequence[Shard],
        *,
        pin_s: float | None = None,
        pending: bool = False,
        local_only: bool = False,
    ) -> BlocksFound:
        return self.store.lookup_blocks(
            owner,
            namespace,
            keys,
            coverage,
            pin_s=pin_s,
            pending=pending,
            now=self.now,
            local_only=local_only,
        )

    def prefix(
        self,
        owner: int,
        namespace: int,
        keys: Sequence[BlockKey],
        coverage: Sequence[Shard] = LAYOUT.whole(),
        *,
        pending: bool = False,
    ) -> int:
        return len(self.lookup_blocks(owner, namespace, keys, coverage, pending=pending).blocks)

    def check(self) -> None:
        assert self.store.audit().differences == []

    def check_idle(self, *, entries: int | None = None) -> None:
        """Invariant 5: nothing pinned, reserved or in quarantine, and the accounts are right."""
        report = self.store.audit()
        assert report.differences == []
        assert (report.pins, report.in_flight, report.quarantined) == (0, 0, 0)
        if entries is not None:
            assert report.entries == entries


def settings_with(**changes: object) -> PoolSettings:
    values: dict[str, object] = {
        "dram_bytes": 8 * SEGMENT_BYTES,
        "segment_bytes": SEGMENT_BYTES,
        "max_entries": 10_000,
    }
    return PoolSettings(**(values | changes))  # type: ignore[arg-type]  # a test's own keywords


MakeNode = Callable[..., Node]


@pytest.fixture
def make_node() -> Iterator[MakeNode]:
    """Nodes with eight segments of 64 KiB unless told otherwise; their accounts are checked at the
    end."""
    nodes: list[Node] = []

    def make(**changes: object) -> Node:
        nodes.append(Node(settings_with(**changes)))
        return nodes[-1]

    yield make
    for node in nodes:
        node.check()
        node.store.close()


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    return make_node()


@pytest.fixture
def chain() -> Callable[..., list[BlockKey]]:
    """`chain(n)`: n block keys; `chain(n, "x")`: others."""
    return lambda count, name="": [
        BlockKey(f"{name}{index}".encode().rjust(16, b"_")) for index in range(count)
    ]


def entry_of(key: BlockKey, shard: Shard) -> EntryId:
    return EntryId(b"k" + key + shard.pack())

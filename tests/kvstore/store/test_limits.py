"""Bounds on memory and pauses, and accounts after long random use."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import subprocess
import sys

import pytest

from moontide.kvstore.errors import InvalidRequest, OutOfSpace
from moontide.kvstore.keys import EntryId, string_entry_id
from moontide.kvstore.store import PoolSettings, ReserveResult, Store
from moontide.kvstore.store.types import ENTRY_MEMORY_BYTES
from moontide.kvstore.types import PutStatus, ReserveStatus
from moontide.transfer import checksum
from moontide.transfer.errors import SegmentUnavailable
from moontide.transfer.memory import available_memory
from moontide.transfer.types import Instance

from .conftest import SEGMENT_BYTES, MakeNode, Node

MAX_PAUSE_SECONDS = 0.020
FIXED_BYTES = 16 << 20
"""Event ring and heap blocks that a few survivors keep: the same for any number of entries."""
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

MEMORY_SCRIPT = """
import ctypes, gc, json, sys, time
from moontide.kvstore.store import PoolSettings, Store
from moontide.transfer.types import Instance

count = int(sys.argv[1])
store = Store(
    PoolSettings(dram_bytes=128 << 20, segment_bytes=64 << 20, max_entries=count),
    Instance.new("node"), now=0.0,
)
store.connect(1, Instance.new("client"))

def resident():
    ctypes.CDLL(None).malloc_trim(0)
    for line in open("/proc/self/status"):
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024

longest, begun = [0.0], [0.0]  # no growing list: its items would pin the heap they lie in
def watch(phase, info):
    if phase == "start":
        begun[0] = time.thread_time()
    else:
        longest[0] = max(longest[0], time.thread_time() - begun[0])

def fill(count):
    for start in range(0, count, 1000):
        keys = [b"s%016d" % index for index in range(start, start + 1000)]
        reserved = store.reserve(1, keys, [16] * 1000, now=1.0)
        store.commit(1, [r.slot for r in reserved], [r.generation for r in reserved],
                     [7] * 1000, 1.0)

fill(10_000)
store.clear(None, strings_only=False)  # what the first of all takes, it takes for good
gc.collect()
gc.freeze()
gc.callbacks.append(watch)
before = resident()
begin = time.perf_counter()
fill(count)
seconds = time.perf_counter() - begin
gc.collect()
full = resident()
entries = store.stats(1.0).tiers["dram"].entries
begin = time.perf_counter()
store.clear(None, strings_only=False)
clear_seconds = time.perf_counter() - begin
cleared = resident()
fill(count)
gc.collect()
print(json.dumps({
    "entries": entries,
    "bytes_each": (full - before) / count,
    "grown": full - before,
    "kept": cleared - before,
    "pause": longest[0],
    "per_second": count / seconds,
    "clear_seconds": clear_seconds,
    "differences": store.audit().differences,
}))
"""


@pytest.mark.parametrize("count", [100_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_r46_tiny_entries_cost_little_and_are_given_back(count: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEMORY_SCRIPT, str(count)],
        capture_output=True,
        text=True,
        timeout=110,
        check=True,
        env=ENVIRONMENT,
    )
    seen = json.loads(done.stdout)
    assert seen["entries"] == count
    assert seen["bytes_each"] <= ENTRY_MEMORY_BYTES, seen
    assert seen["kept"] <= 0.05 * seen["grown"] + FIXED_BYTES, seen
    assert seen["pause"] <= MAX_PAUSE_SECONDS, seen
    assert seen["differences"] == []


def test_r70_pool_larger_than_memory_names_asked_and_available() -> None:
    asked = available_memory().available_bytes // (1 << 30) * (2 << 30) + (2 << 30)
    gc.collect()
    before = set(os.listdir("/proc/self/fd"))
    message = rf"DRAM tier of {asked} bytes and 1000 entries asks for {asked + 300_000} bytes; \d+"
    with pytest.raises(SegmentUnavailable, match=message):
        Store(
            PoolSettings(dram_bytes=asked, segment_bytes=1 << 30, max_entries=1000),
            Instance.new("node"),
            now=0.0,
        )
    assert set(os.listdir("/proc/self/fd")) == before


def test_r70_pool_over_the_address_space_limit_fails_whole() -> None:
    script = """
import os, resource
from moontide.kvstore.store import PoolSettings, Store
from moontide.transfer.errors import SegmentUnavailable
from moontide.transfer.types import Instance
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
before = set(os.listdir("/proc/self/fd"))
try:
    Store(PoolSettings(dram_bytes=2 << 30, segment_bytes=64 << 20, max_entries=1000),
                 Instance.new("node"), now=0.0)
except SegmentUnavailable as error:
    print(error, set(os.listdir("/proc/self/fd")) == before)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=ENVIRONMENT,
    )
    assert "RLIMIT_AS" in done.stdout
    assert done.stdout.endswith("True\n")


class RandomUse:
    """Clients that put, write half, abort, vanish, pin, release twice: all that can happen."""

    def __init__(self, node: Node, seed: int) -> None:
        self.node = node
        self.store = node.store
        self.chance = random.Random(seed)
        self.clients = [Instance("client", index, bytes(16)) for index in range(4)]
        self.owners = [node.connect(client) for client in self.clients]
        self.values: dict[EntryId, bytes] = {}
        self.open: list[tuple[int, EntryId, ReserveResult, bytes]] = []
        self.tickets: list[tuple[int, bytes]] = []
        self.now = 1000.0

    def step(self) -> None:
        self.now += 0.001
        actions = [self.reserve, self.reserve, self.commit, self.commit, self.get, self.get]
        actions += [self.abort, self.pin, self.unpin, self.remove, self.rarely]
        self.chance.choice(actions)()

    def reserve(self) -> None:
        owner = self.chance.choice(self.owners)
        entry = string_entry_id(f"k{self.chance.randrange(300)}")
        index = len(self.values) + len(self.open)
        size = self.chance.choice([16, 500, 5000, self.chance.randrange(SEGMENT_BYTES)])
        data = (entry + b"/%d/%d/" % (size, index)) * (size // len(entry) + 1)
        (reserved,) = self.store.reserve(
            owner,
            [entry],
            [size],
            if_exists="replace",
            shared_memory=self.chance.random() < 0.5,
            now=self.now,
        )
        if reserved.status is ReserveStatus.RESERVED:
            self.open.append((owner, entry, reserved, data[:size]))

    def take_open(self) -> tuple[int, EntryId, ReserveResult, bytes] | None:
        if not self.open:
            return None
        return self.open.pop(self.chance.randrange(len(self.open)))

    def commit(self) -> None:
        taken = self.take_open()
        if taken is None or taken[0] not in self.owners:
            return
        owner, entry, reserved, data = taken
        self.store.buffer(reserved.slot, reserved.generation)[:] = data
        (put,) = self.store.commit(
            owner, [reserved.slot], [reserved.generation], [checksum(data)], self.now
        )
        assert put.status is PutStatus.STORED
        self.values[entry] = data

    def abort(self) -> None:
        taken = self.take_open()
        if taken is not None and taken[0] in self.owners:
            self.store.abort(taken[0], [taken[2].slot], [taken[2].generation])

    def get(self) -> None:
        entry = string_entry_id(f"k{self.chance.randrange(300)}")
        (found,), _ = self.store.lookup(self.owners[0], [entry], None, self.now)
        if found is not None:
            data = self.store.buffer(found.slot, found.generation)
            assert data == self.values[entry]
            assert checksum(data) == found.checksum

    def pin(self) -> None:
        owner = self.chance.choice(self.owners)
        entries = [string_entry_id(f"k{self.chance.randrange(300)}") for _ in range(3)]
        try:
            _, ticket = self.store.lookup(owner, entries, self.chance.choice([0, 0.5]), self.now)
        except OutOfSpace:
            return
        if ticket:
            self.tickets.append((owner, ticket))

    def unpin(self) -> None:
        if self.tickets:
            owner, ticket = self.tickets.pop(self.chance.randrange(len(self.tickets)))
            if owner in self.owners:
                self.release(owner, ticket)
                self.release(owner, ticket)

    def release(self, owner: int, ticket: bytes) -> None:
        with contextlib.suppress(InvalidRequest):  # released already, or expired
            self.store.unpin(owner, ticket)

    def remove(self) -> None:
        self.store.remove([string_entry_id(f"k{self.chance.randrange(300)}")], self.now)

    def rarely(self) -> None:
        if self.chance.random() > 0.05:
            self.store.expire(self.now)
            return
        seat = self.chance.randrange(4)
        if self.chance.random() < 0.5:
            self.store.disconnect(self.owners[seat])
        else:
            self.store.client_exited(self.clients[seat])
            self.clients[seat] = Instance("client", seat, self.chance.randbytes(16))
        self.owners[seat] = self.node.connect(self.clients[seat])


@pytest.mark.parametrize("seed", [1, 2])
def test_r13_accounts_are_exact_after_random_use(make_node: MakeNode, seed: int) -> None:
    node = make_node()
    use = RandomUse(node, seed)
    for step in range(50_000):
        use.step()
        if step % 2_000 == 0:
            node.check()
    for owner in use.owners:
        node.store.disconnect(owner)
    for client in use.clients:
        node.store.client_exited(client)
    node.store.expire(use.now + 10)
    node.check_idle()
    node.store.clear(None, strings_only=False)
    node.check_idle(entries=0)
    assert node.store.stats(use.now).tiers["dram"].used_bytes == 0

"""R61, R16: ids that nobody gave out, or another's, in every message that takes one: each is
refused or ignored, nothing of others changes, and nothing is remembered."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator

import pytest

from moontide.kvstore import wire

from ..kvstore.client.helpers import own_memory
from ..kvstore.daemon.raw_client import RawClient, entry_id, local_client, put_message
from ..store_process import StartStore, StoreProcess
from .targets import under_attack

MANY = 100_000
A_MESSAGE = 2000
"""Ids that one message names, where it takes several."""
MEMORY_BYTES = 8 << 20


@pytest.fixture(scope="module")
def daemon(module_store_daemon: StartStore) -> StoreProcess:
    return module_store_daemon("--dram", "16MiB", "--segment", "2MiB")


def invented(rng: random.Random, count: int) -> tuple[list[int], list[int]]:
    """Slots, most of which there are, and generations."""
    slots = [
        rng.choice([0, 1, 2, 3, 65_536, (1 << 32) - 1, rng.getrandbits(16)]) for _ in range(count)
    ]
    return slots, [rng.choice([0, 1, 2, (1 << 32) - 1, rng.getrandbits(32)]) for _ in range(count)]


def u32s(numbers: list[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


def messages(rng: random.Random) -> Iterator[wire.Request]:
    """One of each kind."""
    slots, generations = invented(rng, A_MESSAGE)
    sums = [1] * A_MESSAGE
    yield wire.Advance(slots, generations, rng.choice([0, 1, 7]), sums)
    yield wire.Commit(slots, generations, sums)
    yield wire.Abort(slots, generations)
    yield wire.Read(slots, generations, [0] * A_MESSAGE)
    yield wire.AwaitExtents(slots, generations, 0, 0.0)
    slot, generation = slots[0], generations[0]
    yield wire.CommitRun(slot, generation, [entry_id("x")], bytes(8), bytes(8), bytes(8))
    yield wire.ReportCorrupt(slot, generation)
    yield wire.AwaitExtent(slot, generation, 0, 0.0)
    yield wire.Write(slot, generation, 0)
    yield wire.Unpin(rng.randbytes(16))
    yield wire.RenewTicket(rng.randbytes(16), 1.0)
    yield wire.MapSegment(rng.getrandbits(31), rng.random() < 0.5)
    yield wire.ReleaseSegment(rng.getrandbits(31))
    yield wire.LookupBlocks(rng.getrandbits(31), rng.randbytes(16), [rng.randbytes(9)])
    yield wire.PublishHbm(rng.getrandbits(31), rng.randbytes(16), b"")


def attack(client: RawClient, rng: random.Random) -> int:
    """How many ids it named."""
    named = 0
    for message in messages(rng):
        client.call_among(message)
        named += len(message.slots) if isinstance(getattr(message, "slots", None), list) else 1
    slots, generations = invented(rng, A_MESSAGE)
    tickets = [rng.randbytes(16) for _ in range(100)]
    client.send(wire.NoteUse(u32s(slots), u32s(generations), 1 << 40, tickets))
    return named + A_MESSAGE + len(tickets)


def test_r61_a_hundred_thousand_invented_ids_leave_no_state(daemon: StoreProcess) -> None:
    rng = random.Random(61)
    with under_attack(daemon) as bystander, local_client(daemon.socket) as client:
        named = attack(client, rng)  # buffers and caches grow once
        before = own_memory(daemon.pid)
        while named < MANY:
            named += attack(client, rng)
        client.call_among(wire.GetStats())
        assert own_memory(daemon.pid) - before < MEMORY_BYTES
        bystander.check()


def in_flight(client: RawClient) -> int:
    """Reservations and runs."""
    stats = json.loads(client.call(wire.GetStats()).message.stats)
    count: int = stats["in_flight"] + stats["runs"]
    return count


def test_r61_anothers_ids_do_not_work(daemon: StoreProcess) -> None:
    """A reservation, a run and a view end, move and are read only through their owner."""
    with (
        under_attack(daemon),
        local_client(daemon.socket, newest_version=2) as owner,
        local_client(daemon.socket, newest_version=2) as thief,
    ):
        before = in_flight(owner)  # the bystander's
        reserved = owner.call(wire.Reserve([entry_id("a")], [1 << 20])).message.results[0]
        run = owner.call(wire.ReserveRun(1 << 16)).message.results[0]
        owner.call(put_message([("b", b"value")]), b"value")
        view = owner.call(wire.Lookup([entry_id("b")], 0)).message.ticket
        held = in_flight(owner)
        assert (reserved[0], run[0], held) == (0, 0, before + 2)
        for _, slot, generation, segment, *_ in (reserved, run):
            committed = thief.call(wire.Commit([slot], [generation], [1])).message
            assert committed.results[0][0] != 0
            thief.call(wire.Abort([slot], [generation]))
            assert isinstance(thief.call(wire.MapSegment(segment, True)).message, wire.Failure)
            cut = wire.CommitRun(slot, generation, [entry_id("c")], bytes(8), bytes(8), bytes(8))
            assert isinstance(thief.call(cut).message, wire.Failure)
            assert isinstance(
                thief.call(wire.Write(slot, generation, 0), b"x").message, wire.Failure
            )
        assert isinstance(thief.call(wire.Unpin(view)).message, wire.Failure)
        assert thief.get("a") is thief.get("c") is None
        assert in_flight(owner) == held
        for _, slot, generation, *_ in (reserved, run):
            assert owner.call(wire.Abort([slot], [generation])).message == wire.Ok()
        assert owner.call(wire.Unpin(view)).message == wire.Ok()

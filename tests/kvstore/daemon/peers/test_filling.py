"""Fills over a transport that fails on purpose: what came is kept, what did not ends, and our
memory is let go of first."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

import pytest

from moontide.kvstore import BlockKey, StoreUnavailable, Tier, wire
from moontide.kvstore.daemon.peers.connection import LinkIdentity
from moontide.kvstore.daemon.peers.filling import (
    LOOK_SECONDS,
    FillCounters,
    FillTools,
    PeerFill,
)
from moontide.kvstore.daemon.peers.flow import FlowLimit
from moontide.kvstore.daemon.peers.link import PeerLink
from moontide.kvstore.daemon.peers.offers import read_offer
from moontide.kvstore.daemon.peers.plan import FillPlan, Piece
from moontide.kvstore.daemon.peers.reads import PoolReads
from moontide.kvstore.daemon.peers.reserving import FillSpec, reserve_pieces
from moontide.kvstore.membership import StoreRecord
from moontide.kvstore.store import PoolSettings, Store
from moontide.transfer import TcpTransport, TransferServer, checksum
from moontide.transfer.types import Instance

from ....conformance.transport_rigs import Gate, GatedRegistry
from ....faulty_transport import Faults, FaultyTransport
from ...client.helpers import LAYOUT, NAMESPACE, block_bytes

TOKEN = b"token"
WHOLE = LAYOUT.whole()
KEYS = [BlockKey(bytes([number]) * 16) for number in range(1, 6)]
NUM_READS = len(KEYS) * 4
CLIENT = 1


def new_store(node: str) -> Store:
    settings = PoolSettings(dram_bytes=1 << 20, segment_bytes=1 << 18, max_entries=1000)
    store = Store(settings, Instance.new(node))
    store.connect(CLIENT, Instance.new("client"))
    store.open_namespace(NAMESPACE)
    return store


class NoNews:
    """The peer had everything at once."""

    def keep(self, plan: FillPlan) -> None:
        pass

    async def news(self, plan: FillPlan) -> None:
        raise StoreUnavailable("gone")

    def close(self) -> None:
        pass


@dataclass
class World:
    """A peer with committed blocks, and a store of ours that lacks them."""

    ours: Store
    theirs: Store
    transport: TcpTransport
    link: PeerLink
    gate: Gate  # closed: nothing the peer is asked for comes

    def pieces(self) -> list[Piece]:
        spec = FillSpec(
            number=1,
            namespace=NAMESPACE,
            keys=KEYS,
            parents=[b"", *KEYS[:-1]],
            shards=WHOLE,
            tier=Tier.DRAM,
            peer="theirs",
        )
        pieces, has_room = reserve_pieces(self.ours, spec)
        assert has_room
        found = self.theirs.lookup_blocks(
            CLIENT, 1, KEYS, WHOLE, pin_s=None, pending=False, now=0.0
        )
        offer = read_offer(wire.BlocksReply(*found), NAMESPACE)
        for piece, (entry,) in zip(pieces, offer, strict=True):
            piece.remote = entry
        return pieces

    def hold(self, keys: Sequence[BlockKey]) -> bytes:
        """A reader of ours wants these, which fill; the ticket that says so."""
        found = self.ours.lookup_blocks(
            CLIENT, 1, keys, WHOLE, pin_s=60.0, pending=False, now=time.monotonic()
        )
        assert len(found.blocks) == len(keys)
        return found.ticket

    def run(
        self,
        pieces: Sequence[Piece],
        faults: Faults,
        seconds: float = 5.0,
        meanwhile: Callable[[], None] | None = None,
    ) -> FillCounters:
        """`meanwhile` runs in the loop, once something is on its way."""
        counters = FillCounters()

        async def fill() -> None:
            transport = FaultyTransport(self.transport, faults)
            reads = PoolReads(transport, asyncio.get_running_loop())
            flow = FlowLimit(1 << 20)
            with ThreadPoolExecutor(1) as verifiers:
                tools = FillTools(self.ours, reads, flow, verifiers, counters, lambda digest: 0)
                deadline = time.monotonic() + seconds
                filling = asyncio.create_task(
                    PeerFill(tools, self.link, FillPlan(pieces), NoNews(), deadline).run()
                )
                if meanwhile is not None:
                    assert await asyncio.to_thread(self.gate.reached.wait, seconds)
                    meanwhile()
                await filling
            reads.close()
            assert flow.used_bytes == 0

        asyncio.run(fill())
        return counters

    def check(self, lost: Sequence[int]) -> None:
        """Blocks `lost` are missing here, all others hold the right bytes, and nothing is left."""
        report = self.ours.audit()
        assert report.differences == []
        assert (report.in_flight, report.pins, report.quarantined) == (0, 0, 0)
        assert self.ours.missing(1, KEYS, WHOLE) == sorted(lost)
        for number, key in enumerate(KEYS):
            if number in lost:
                continue
            found = self.ours.lookup_blocks(
                CLIENT, 1, [key], WHOLE, pin_s=None, pending=False, now=0.0
            )
            ((entry,),) = found.blocks
            data = self.ours.buffer(entry.slot, entry.generation)
            assert bytes(data) == bytes(content(key))


def content(key: BlockKey) -> bytes:
    num_bytes = LAYOUT.layer_bytes(WHOLE[0], NAMESPACE.block_tokens)
    return b"".join(block_bytes(key, layer, num_bytes) for layer in range(4))


def write_blocks(store: Store) -> None:
    reserved = store.reserve_blocks(CLIENT, 1, KEYS, b"", WHOLE, shared_memory=False, now=0.0)
    slots, generations = [r.slot for r in reserved], [r.generation for r in reserved]
    num_bytes = LAYOUT.layer_bytes(WHOLE[0], NAMESPACE.block_tokens)
    for layer in range(4):
        sums = []
        for slot, generation, key in zip(slots, generations, KEYS, strict=True):
            piece = store.buffer(slot, generation)[layer * num_bytes : (layer + 1) * num_bytes]
            piece[:] = block_bytes(key, layer, num_bytes)
            sums.append(checksum(piece))
        store.advance(CLIENT, slots, generations, layer, sums)
    store.commit(CLIENT, slots, generations, [], 0.0)


@pytest.fixture
def world() -> Iterator[World]:
    ours, theirs = new_store("ours"), new_store("theirs")
    write_blocks(theirs)
    gate = Gate()
    segments = GatedRegistry(gate)
    for index in range(len(theirs.segment_sizes)):
        segments.add(index, theirs.segment_view(index))
    instance = str(theirs.instance)
    record = StoreRecord(id="theirs", instance=instance, admin_url="", data_address="", socket="")
    server = TransferServer(
        socket.create_server(("127.0.0.1", 0)), token=TOKEN, instance=instance, segments=segments
    )
    with closing(server), closing(TcpTransport(TOKEN, ours.instance)) as transport:
        server.start()
        transport.add_route(instance, *server.address)
        link = PeerLink(record, LinkIdentity("ours", TOKEN))
        yield World(ours, theirs, transport, link, gate)
        gate.open.set()
    ours.close()
    theirs.close()


def test_every_block_comes(world: World) -> None:
    counters = world.run(world.pieces(), Faults())
    assert counters == FillCounters(filled_entries=5)
    world.check([])


@pytest.mark.parametrize("number", range(NUM_READS))
def test_r09_r10_a_read_that_fails_costs_its_block_and_no_other(world: World, number: int) -> None:
    counters = world.run(world.pieces(), Faults(fail=lambda n: n == number))
    assert (counters.filled_entries, counters.failed_entries) == (4, 1)
    world.check([number % 5])


@pytest.mark.parametrize("number", [0, 7, 19])
def test_bytes_that_do_not_match_are_never_handed_out(world: World, number: int) -> None:
    counters = world.run(world.pieces(), Faults(corrupt=lambda n: n == number))
    assert counters == FillCounters(filled_entries=4, failed_entries=1, corrupt_extents=1)
    world.check([number % 5])


def test_a_busy_transport_fails_its_fill_and_leaves_nothing(world: World) -> None:
    counters = world.run(world.pieces(), Faults(refuse=lambda n: n == 0))
    assert counters.filled_entries == 0
    world.check(range(5))


def test_r10_at_the_deadline_reservations_end_after_their_reads(world: World) -> None:
    counters = world.run(world.pieces(), Faults(), seconds=0.0)
    assert counters.filled_entries == 0
    world.check(range(5))


def test_r25_reads_under_the_name_of_a_former_instance_fail(world: World) -> None:
    pieces = world.pieces()
    former = str(Instance.new("theirs"))
    world.transport.drop_route(world.link.record.instance)
    world.transport.add_route(former, *("127.0.0.1", 1))
    world.run(pieces, Faults())
    world.check(range(5))


def test_r17_r51_what_nobody_holds_any_more_is_not_waited_for(world: World) -> None:
    pieces = world.pieces()
    ticket = world.hold(KEYS)
    world.gate.open.clear()  # for good: its peer never answers
    counters = world.run(
        pieces, Faults(), seconds=60.0, meanwhile=lambda: world.ours.unpin(CLIENT, ticket)
    )
    assert counters == FillCounters(dropped_entries=5)
    world.check(range(5))


def test_r51_the_blocks_that_are_still_held_come(world: World) -> None:
    pieces = world.pieces()
    all_of_them, first = world.hold(KEYS), world.hold(KEYS[:2])
    world.gate.open.clear()

    def narrow() -> None:
        world.ours.unpin(CLIENT, all_of_them)
        asyncio.get_running_loop().call_later(2 * LOOK_SECONDS, world.gate.open.set)

    counters = world.run(pieces, Faults(), seconds=60.0, meanwhile=narrow)
    assert counters == FillCounters(filled_entries=2, dropped_entries=3)
    world.ours.unpin(CLIENT, first)
    world.check([2, 3, 4])

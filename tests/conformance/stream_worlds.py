"""Layer streams from a rig's peer into a store of ours, over whatever transport the rig has."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from moontide.kvstore import BlockKey, Tier
from moontide.kvstore.daemon.peers.connection import LinkIdentity
from moontide.kvstore.daemon.peers.filling import FillCounters, FillTools, PeerFill
from moontide.kvstore.daemon.peers.flow import FlowLimit
from moontide.kvstore.daemon.peers.link import PeerLink
from moontide.kvstore.daemon.peers.news import NewsSource
from moontide.kvstore.daemon.peers.offers import RemoteEntry
from moontide.kvstore.daemon.peers.plan import FillPlan, Piece
from moontide.kvstore.daemon.peers.reads import PoolReads
from moontide.kvstore.daemon.peers.reserving import FillSpec, reserve_pieces
from moontide.kvstore.membership import StoreRecord
from moontide.kvstore.store import PoolSettings, Store
from moontide.transfer import checksum
from moontide.transfer.types import (
    Instance,
    Opcode,
    SegmentAddress,
    SliceState,
    TransferRequest,
)

from ..faulty_transport import Faults, FaultyTransport
from ..kvstore.client.helpers import LAYOUT, NAMESPACE
from .transport_rigs import CONTENT, PEER, READABLE, SOON, Rig

WHOLE = LAYOUT.whole()
NUM_LAYERS = 4
LAYER_BYTES = LAYOUT.layer_bytes(WHOLE[0], NAMESPACE.block_tokens)
BLOCK_BYTES = NUM_LAYERS * LAYER_BYTES
KEYS = [BlockKey(bytes([number]) * 16) for number in range(1, 6)]
CLIENT = 1
PIN_SECONDS = 60.0


def offset_of(key: BlockKey) -> int:
    """Where the peer has the block."""
    return key[0] * BLOCK_BYTES


def content(key: BlockKey, layer: int) -> bytes:
    start = offset_of(key) + layer * LAYER_BYTES
    return CONTENT[start : start + LAYER_BYTES]


def entry_of(key: BlockKey, extents: int = NUM_LAYERS) -> RemoteEntry:
    """As the peer tells of it, with the checksums of its writer."""
    sums = [checksum(content(key, layer)) for layer in range(NUM_LAYERS)]
    return RemoteEntry(WHOLE[0], key[0], 1, READABLE, offset_of(key), extents, Tier.DRAM, sums)


class NoNews:
    """The peer had everything at once."""

    def keep(self, plan: FillPlan) -> None:
        pass

    async def news(self, plan: FillPlan) -> None:
        raise AssertionError("nothing is to come")

    def close(self) -> None:
        pass


class Writer(NoNews):
    """Completes a layer of every block whenever all before it has been read; `then` gets how many
    are complete."""

    def __init__(self, then: Callable[[int], object] = lambda extents: None) -> None:
        self.then = then

    async def news(self, plan: FillPlan) -> None:
        waiting = plan.waiting()
        extents = waiting[0].available + 1
        self.then(extents - 1)
        for piece in waiting:
            piece.remote = entry_of(BlockKey(piece.key), extents)


@dataclass
class StreamWorld:
    rig: Rig
    ours: Store
    faults: Faults = field(default_factory=Faults)
    counters: FillCounters = field(default_factory=FillCounters)
    instance: str = PEER  # that is asked

    def reading(self) -> asyncio.Event:
        """Set once a layer was asked for."""
        asked = asyncio.Event()

        def submitted(number: int) -> bool:
            asked.set()
            return False

        self.faults = Faults(refuse=submitted)
        return asked

    @classmethod
    def of(cls, rig: Rig) -> StreamWorld:
        settings = PoolSettings(dram_bytes=1 << 20, segment_bytes=1 << 18, max_entries=1000)
        ours = Store(settings, Instance.new("ours"))
        ours.connect(CLIENT, Instance.new("client"))
        ours.open_namespace(NAMESPACE)
        return cls(rig, ours)

    def pieces(self, keys: Sequence[BlockKey] = KEYS, extents: int = NUM_LAYERS) -> list[Piece]:
        """Places for blocks of which the peer has so many layers."""
        spec = FillSpec(
            number=1,
            namespace=NAMESPACE,
            keys=keys,
            parents=[b"", *keys[:-1]],
            shards=WHOLE,
            tier=Tier.DRAM,
            peer="theirs",
        )
        pieces, has_room = reserve_pieces(self.ours, spec)
        assert has_room
        for piece in pieces:
            piece.remote = entry_of(BlockKey(piece.key), extents) if extents else None
        return pieces

    def hold(self, keys: Sequence[BlockKey] = KEYS) -> bytes:
        """A reader of ours wants these, which fill; its ticket."""
        found = self.ours.lookup_blocks(
            CLIENT, 1, keys, WHOLE, pin_s=PIN_SECONDS, pending=False, now=time.monotonic()
        )
        assert len(found.blocks) == len(keys)
        return found.ticket

    def release(self, ticket: bytes) -> None:
        self.ours.unpin(CLIENT, ticket)

    def read_anything(self) -> None:
        """Of the peer, and waits for it."""
        request = TransferRequest(
            Opcode.READ, memoryview(bytearray(1)), SegmentAddress(PEER, READABLE), 0
        )
        batch = self.rig.transport.submit([request], deadline=time.monotonic() + SOON)
        (status,) = self.rig.transport.wait(batch)
        assert status.state is SliceState.DONE

    def run(
        self,
        *plans: FillPlan,
        source: NewsSource | None = None,
        seconds: float = SOON,
        meanwhile: Awaitable[None] | None = None,
    ) -> FillCounters:
        """The end of all these streams, which share one transport."""

        async def streams() -> None:
            transport = FaultyTransport(self.rig.transport, self.faults)
            reads = PoolReads(transport, asyncio.get_running_loop())
            flow = FlowLimit(1 << 20)
            record = StoreRecord(
                id="theirs", instance=self.instance, admin_url="", data_address="", socket=""
            )
            link = PeerLink(record, LinkIdentity("ours", b"token"))
            deadline = time.monotonic() + seconds
            with ThreadPoolExecutor(1) as verifiers:
                tools = FillTools(
                    self.ours, reads, flow, verifiers, self.counters, lambda digest: 0
                )
                fills = [
                    asyncio.create_task(
                        PeerFill(tools, link, plan, source or NoNews(), deadline).run()
                    )
                    for plan in plans
                ]
                if meanwhile is not None:
                    await meanwhile
                await asyncio.gather(*fills)
            assert flow.used_bytes == 0

        asyncio.run(streams())
        return self.counters

    async def arrival(self, piece: Piece, layer: int) -> bool:
        """Once that layer can be read here: True; or will not come any more."""
        came = asyncio.get_running_loop().create_future()
        self.ours.watch_extent(piece.slot, piece.generation, layer, came.set_result)
        return bool(await came)

    def is_here(self, piece: Piece, layer: int) -> bool:
        """With the right bytes."""
        data = piece.memory[layer * LAYER_BYTES : (layer + 1) * LAYER_BYTES]
        return bytes(data) == content(BlockKey(piece.key), layer)

    def check(self, lost: Iterable[BlockKey] = (), keys: Sequence[BlockKey] = KEYS) -> None:
        """`lost` are missing here, all others hold the right bytes, and nothing is left."""
        report = self.ours.audit()
        assert report.differences == []
        assert (report.in_flight, report.pins, report.quarantined) == (0, 0, 0)
        missing = self.ours.missing(1, keys, WHOLE)
        assert {keys[index] for index in missing} == set(lost)
        for key in set(keys) - set(lost):
            found = self.ours.lookup_blocks(
                CLIENT, 1, [key], WHOLE, pin_s=None, pending=False, now=0.0
            )
            ((entry,),) = found.blocks
            data = self.ours.buffer(entry.slot, entry.generation)
            assert bytes(data) == b"".join(content(key, layer) for layer in range(NUM_LAYERS))

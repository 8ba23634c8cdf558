"""A layer stream as a store receives it (blocks from another node, layer by layer, each verified),
beside the same bytes in one batch that is verified once it has come."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from typing import Any, NamedTuple

import uvloop

from moontide.transfer import Segment, ShmTransport, TcpTransport, Transport, checksum
from moontide.transfer.types import (
    Instance,
    Opcode,
    SegmentAddress,
    SliceState,
    SliceStatus,
    TransferRequest,
    boot_id,
)

from ....daemon.peers.connection import LinkIdentity
from ....daemon.peers.filling import FillCounters, FillTools, PeerFill
from ....daemon.peers.flow import FlowLimit
from ....daemon.peers.link import PeerLink
from ....daemon.peers.news import NewsSource
from ....daemon.peers.offers import RemoteEntry
from ....daemon.peers.peers import IN_FLIGHT_BYTES, VERIFY_THREADS
from ....daemon.peers.plan import FillPlan, Piece
from ....daemon.peers.reads import PoolReads
from ....daemon.peers.reserving import FillSpec, reserve_pieces
from ....keys import BlockKey, Namespace
from ....layout import Group, KVLayout
from ....membership import StoreRecord
from ....store import FILL_OWNER, LayerRun, PoolSettings, Store
from ....types import Tier
from ..areas import filled
from ..contract import Failed
from ..serving import Driver, serve
from .contract import Remote
from .halves import ServerHalf
from .ours import HOST, serving

CALL_SECONDS = 60.0
ENTRIES = 4096
TOKENS = 64
HEAD_DIM = 64
DTYPE_BYTES = 2
LEAST_PAIRS = 2


class Shape(NamedTuple):
    """Of what is streamed: block after block, each layer after layer."""

    blocks: int
    layers: int
    layer_bytes: int

    @property
    def block_bytes(self) -> int:
        return self.layers * self.layer_bytes

    def namespace(self) -> Namespace:
        heads = self.layer_bytes // (2 * TOKENS * HEAD_DIM * DTYPE_BYTES)
        layout = KVLayout((Group("full", self.layers, heads, HEAD_DIM, "float16"),))
        return Namespace(
            weights_id="bench", layout=layout, tokenizer_digest="bench", block_tokens=TOKENS
        )


class Streamed(NamedTuple):
    """Seconds from the start: every block's first layer could be read; every block was whole."""

    first: float
    whole: float


class Unstreamed(NamedTuple):
    """Seconds from the start: the bytes were there; they were verified and the blocks whole."""

    bytes_there: float
    whole: float


class NoNews(NewsSource):
    """The peer has everything."""

    def keep(self, plan: FillPlan) -> None:
        pass

    async def news(self, plan: FillPlan) -> None:
        raise Failed("a stream waited for what is there")

    def close(self) -> None:
        pass


class Receiver:
    """A store of its own that is sent what lies in the server half's memory."""

    def __init__(self, shape: Shape, source: memoryview, instance: str) -> None:
        self._shape = shape
        self._source = source
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        segment_bytes = -(-(16 << 20) // shape.block_bytes) * shape.block_bytes
        num_segments = 2 * -(-shape.blocks * shape.block_bytes // segment_bytes)
        settings = PoolSettings(
            dram_bytes=num_segments * segment_bytes,
            segment_bytes=segment_bytes,
            max_entries=ENTRIES,
        )
        self._store = Store(settings, Instance.new("bench"))
        self._namespace = shape.namespace()
        self._number = self._store.open_namespace(self._namespace)
        self._keys = [BlockKey(number.to_bytes(16)) for number in range(1, shape.blocks + 1)]
        self._verifiers = ThreadPoolExecutor(VERIFY_THREADS, thread_name_prefix="verify")
        self._transports: dict[str, Transport] = {}
        record = StoreRecord(id="peer", instance=instance, admin_url="", data_address="", socket="")
        self._link = PeerLink(record, LinkIdentity("bench", b""))
        self._counters = FillCounters()

    def enter(self, via: str, transport: Transport) -> None:
        self._transports[via] = transport

    def streamed(self, via: str) -> Streamed:
        return self._runner.run(self._streamed(self._transports[via]))

    def unstreamed(self, via: str) -> Unstreamed:
        return self._runner.run(self._unstreamed(self._transports[via]))

    def close(self) -> None:
        self._runner.close()
        self._verifiers.shutdown()
        self._store.close()

    async def _streamed(self, transport: Transport) -> Streamed:
        pieces = self._pieces()
        firsts: list[float] = []
        for piece in pieces:
            self._store.watch_extent(
                piece.slot, piece.generation, 0, lambda _: firsts.append(time.perf_counter())
            )
        reads = PoolReads(transport, asyncio.get_running_loop())
        flow = FlowLimit(IN_FLIGHT_BYTES)
        tools = FillTools(
            self._store, reads, flow, self._verifiers, self._counters, lambda digest: 0
        )
        deadline = time.monotonic() + CALL_SECONDS
        fill = PeerFill(tools, self._link, FillPlan(pieces), NoNews(), deadline)
        start = time.perf_counter()
        await fill.run()
        whole = time.perf_counter() - start
        self._empty()
        return Streamed(max(firsts) - start, whole)

    async def _unstreamed(self, transport: Transport) -> Unstreamed:
        pieces = self._pieces()
        address = SegmentAddress(self._link.record.instance, Remote.SERVED)
        requests = [
            TransferRequest(Opcode.READ, piece.memory, address, index * self._shape.block_bytes)
            for index, piece in enumerate(pieces)
        ]
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Sequence[SliceStatus]] = loop.create_future()

        def then(statuses: Sequence[SliceStatus]) -> None:
            loop.call_soon_threadsafe(ended.set_result, statuses)

        start = time.perf_counter()
        transport.submit(requests, deadline=time.monotonic() + CALL_SECONDS, then=then)
        statuses = await ended
        bytes_there = time.perf_counter() - start
        if any(status.state is not SliceState.DONE for status in statuses):
            raise Failed(f"slices ended as {sorted({status.reason for status in statuses})}")
        sums = await asyncio.gather(
            *(loop.run_in_executor(self._verifiers, self._sums, each.memory) for each in pieces)
        )
        self._complete(pieces, sums)
        whole = time.perf_counter() - start
        self._empty()
        return Unstreamed(bytes_there, whole)

    def _pieces(self) -> list[Piece]:
        spec = FillSpec(
            number=self._number,
            namespace=self._namespace,
            keys=self._keys,
            parents=[b"", *self._keys[:-1]],
            shards=self._namespace.layout.whole(),
            tier=Tier.DRAM,
            peer="peer",
        )
        pieces, has_room = reserve_pieces(self._store, spec)
        if not has_room:
            raise Failed(f"no room for {self._shape}")
        for index, piece in enumerate(pieces):
            offset = index * self._shape.block_bytes
            sums = self._sums(self._source[offset : offset + self._shape.block_bytes])
            piece.remote = RemoteEntry(
                piece.shard, index, 1, Remote.SERVED, offset, self._shape.layers, Tier.DRAM, sums
            )
        return pieces

    def _sums(self, block: memoryview) -> list[int]:
        """Of its layers."""
        size = self._shape.layer_bytes
        return [checksum(block[start : start + size]) for start in range(0, len(block), size)]

    def _complete(self, pieces: Sequence[Piece], sums: Sequence[Sequence[int]]) -> None:
        """Raises Failed when bytes are not those of the source."""
        for piece, found in zip(pieces, sums, strict=True):
            if piece.remote is None or list(piece.remote.checksums) != list(found):
                raise Failed("a block came with other bytes")
        slots, generations = [each.slot for each in pieces], [each.generation for each in pieces]
        runs = map(LayerRun, slots, generations, [0] * len(pieces), sums)
        self._store.advance_runs(FILL_OWNER, [*runs])
        self._store.commit(FILL_OWNER, slots, generations, [], time.monotonic())

    def _empty(self) -> None:
        gone = self._store.clear(None, strings_only=False)
        if gone != self._shape.blocks:
            raise Failed(f"{gone} of {self._shape.blocks} blocks became whole")


def begin(request: Mapping[str, Any]) -> Driver:
    shape = Shape(request["blocks"], request["layers"], request["layer_bytes"])
    num_bytes = shape.blocks * shape.block_bytes
    token = secrets.token_bytes(32)
    server = ServerHalf(serving(token), num_bytes)
    instance, source = server.hello["instance"], filled(num_bytes)
    segment = Segment(num_bytes, name="bench-layers")
    segment.buffer[:] = source.view
    shm, tcp = ShmTransport(), TcpTransport(token, Instance.new("bench"))
    shm.attach(SegmentAddress(instance, Remote.SERVED), segment, boot=boot_id())
    tcp.add_route(instance, HOST, server.hello["port"])
    receiver = Receiver(shape, source.view, instance)
    receiver.enter("shm", shm)
    receiver.enter("tcp", tcp)

    def layers(asked: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Pairs of a streamed and an unstreamed transfer, either first in turn."""
        pairs: list[dict[str, Any]] = []
        end = time.perf_counter() + asked["budget_seconds"]
        while len(pairs) < LEAST_PAIRS or time.perf_counter() < end:
            if len(pairs) % 2:
                unstreamed = receiver.unstreamed(asked["via"])
                streamed = receiver.streamed(asked["via"])
            else:
                streamed = receiver.streamed(asked["via"])
                unstreamed = receiver.unstreamed(asked["via"])
            pairs.append({"streamed": streamed._asdict(), "unstreamed": unstreamed._asdict()})
        return pairs

    def close() -> None:
        receiver.close()
        shm.close()
        tcp.close()
        server.close()

    return Driver(metadata.version("moontide"), {"layers": layers}, close=close)


if __name__ == "__main__":
    serve(begin)

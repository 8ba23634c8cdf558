"""Every transport with a peer to talk to; a new one adds a line to TRANSPORTS."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from moontide.transfer import (
    Access,
    DirectFile,
    FileAccess,
    FileSpan,
    FileTransport,
    Limits,
    Segment,
    SegmentRegistry,
    ShmTransport,
    TcpLimits,
    TcpTransport,
    TlsEndpoint,
    TransferServer,
    Transport,
)
from moontide.transfer.engine import EngineLimits, Rail, RailName, TransferEngine
from moontide.transfer.registry import Borrowed
from moontide.transfer.types import Instance, Opcode, SegmentAddress, TransferRequest, boot_id

from ..authority import Authority
from ..faulty_transport import FaultyTransport

PEER = str(Instance("peer", 1, bytes(16)))
SEGMENT_BYTES = 4 << 20
CONTENT = random.Random(7).randbytes(SEGMENT_BYTES)
SOON = 10.0
READABLE, LANDING, HELD = 0, 1, 5


class Rig(Protocol):
    """A transport and its peer: segment 0 holds CONTENT and may be read, segment 1 is a landing
    segment of zeros."""

    transport: Transport

    def landed(self, start: int, stop: int) -> bytes:
        """What the landing segment holds."""

    def hold(self) -> None:
        """No slice submitted from now on moves until `resume`."""

    def resume(self) -> None: ...

    def lose(self) -> None:
        """The peer is gone."""


class Gate:
    """What makes memory, a disk or a peer answer late."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.reached = threading.Event()

    def pass_through(self) -> None:
        self.reached.set()
        assert self.open.wait(30), "the test never resumed"


class GatedRegistry(SegmentRegistry):
    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self.gate = gate

    def borrow(self, opcode: Opcode, segment: int, offset: int, length: int) -> Borrowed:
        self.gate.pass_through()
        return super().borrow(opcode, segment, offset, length)


class GatedMemory:
    def __init__(self, segment: Segment, gate: Gate) -> None:
        self.segment = segment
        self.gate = gate

    @property
    def buffer(self) -> memoryview:
        self.gate.pass_through()
        return self.segment.buffer


class GatedFile(DirectFile):
    gate: Gate

    def read_into(self, buffers: Sequence[memoryview], offset: int) -> None:
        self.gate.pass_through()
        super().read_into(buffers, offset)


class TcpRig:
    def __init__(
        self, stack: ExitStack, path: Path, limits: Limits, tls: TlsEndpoint | None = None
    ) -> None:
        self.gate = Gate()
        self.segments = _two_segments(stack)
        self.segments[0].buffer[:] = CONTENT
        registry = GatedRegistry(self.gate)
        registry.add(READABLE, self.segments[0].buffer.toreadonly())
        registry.add(LANDING, self.segments[1].buffer, Access.LANDING)
        listener = socket.create_server(("127.0.0.1", 0))
        self.server = TransferServer(
            listener, token=b"token", instance=PEER, segments=registry, tls=tls
        )
        self.server.start()
        transport = TcpTransport(
            b"token", Instance.new("here"), TcpLimits(in_flight=limits), tls=tls
        )
        transport.add_route(PEER, *self.server.address)
        self.transport: Transport = transport
        stack.callback(self.server.close)
        stack.callback(transport.close)
        stack.callback(self.gate.open.set)

    def landed(self, start: int, stop: int) -> bytes:
        return bytes(self.segments[1].buffer[start:stop])

    def hold(self) -> None:
        self.gate.open.clear()

    def resume(self) -> None:
        self.gate.open.set()

    def lose(self) -> None:
        self.server.close()


class TlsRig(TcpRig):
    def __init__(self, stack: ExitStack, path: Path, limits: Limits) -> None:
        super().__init__(stack, path, limits, TlsEndpoint(Authority(path / "ca").issue("node")))


class QueuedRig:
    """Of a transport whose one thread is held by a slice that waits at the gate."""

    transport: Transport
    gate: Gate

    def hold(self) -> None:
        self.gate.open.clear()
        address = SegmentAddress(PEER, HELD)
        request = TransferRequest(Opcode.READ, memoryview(bytearray(1)), address, 0)
        batch = self.transport.submit([request], deadline=time.monotonic() + 60)
        assert self.gate.reached.wait(SOON), "the thread never began"
        self.transport.forget(batch)

    def resume(self) -> None:
        self.gate.open.set()


class ShmRig(QueuedRig):
    def __init__(self, stack: ExitStack, path: Path, limits: Limits) -> None:
        self.gate = Gate()
        self.segments = _two_segments(stack)
        self.segments[0].buffer[:] = CONTENT
        readable = cast(Segment, _ReadOnly(self.segments[0]))
        transport = ShmTransport(limits)
        transport.attach(SegmentAddress(PEER, READABLE), readable, boot=boot_id())
        transport.attach(SegmentAddress(PEER, LANDING), self.segments[1], boot=boot_id())
        held = cast(Segment, GatedMemory(self.segments[0], self.gate))
        transport.attach(SegmentAddress(PEER, HELD), held, boot=boot_id())
        self.shm = transport
        self.transport = transport
        stack.callback(transport.close)
        stack.callback(self.gate.open.set)

    def landed(self, start: int, stop: int) -> bytes:
        return bytes(self.segments[1].buffer[start:stop])

    def lose(self) -> None:
        for segment in (READABLE, LANDING):
            self.shm.detach(SegmentAddress(PEER, segment))


class FileRig(QueuedRig):
    def __init__(self, stack: ExitStack, path: Path, limits: Limits) -> None:
        self.gate = Gate()
        self.path = path / "spans"
        self.path.write_bytes(bytes(4096) + CONTENT + bytes(SEGMENT_BYTES))
        file = DirectFile(self.path, FileAccess.WRITE)
        held = GatedFile(self.path, FileAccess.READ)
        held.gate = self.gate
        transport = FileTransport(limits, threads=1)
        readable = FileSpan(file, 4096, SEGMENT_BYTES)
        landing = FileSpan(file, 4096 + SEGMENT_BYTES, SEGMENT_BYTES, Access.LANDING)
        transport.attach(SegmentAddress(PEER, READABLE), readable)
        transport.attach(SegmentAddress(PEER, LANDING), landing)
        transport.attach(SegmentAddress(PEER, HELD), FileSpan(held, 0, 4096))
        self.files = transport
        self.transport = transport
        for closing in (file.close, held.close, transport.close, self.gate.open.set):
            stack.callback(closing)

    def landed(self, start: int, stop: int) -> bytes:
        first = 4096 + SEGMENT_BYTES
        return self.path.read_bytes()[first + start : first + stop]

    def lose(self) -> None:
        for segment in (READABLE, LANDING):
            self.files.detach(SegmentAddress(PEER, segment))


class FaultyRig(ShmRig):
    """The decorator that injects nothing."""

    def __init__(self, stack: ExitStack, path: Path, limits: Limits) -> None:
        super().__init__(stack, path, limits)
        self.transport = FaultyTransport(self.transport)


def _two_segments(stack: ExitStack) -> list[Segment]:
    segments = [Segment(SEGMENT_BYTES, name=f"s{i}") for i in range(2)]
    for segment in segments:
        stack.callback(segment.close)
    return segments


class EngineRig(TcpRig):
    """Two rails to one peer. The engine's limits are the given ones."""

    def __init__(self, stack: ExitStack, path: Path, limits: Limits) -> None:
        super().__init__(stack, path, limits)
        rails = []
        for name in ("left", "right"):
            tcp = TcpTransport(b"token", Instance.new("here"))
            rails.append(Rail(RailName(name), "tcp", tcp, tcp))
        engine = TransferEngine(rails, EngineLimits(limits))
        engine.add_route(PEER, *self.server.address)
        self.transport = engine
        stack.callback(engine.close)
        stack.callback(self.gate.open.set)


@dataclass
class _ReadOnly:
    segment: Segment

    @property
    def buffer(self) -> memoryview:
        return self.segment.buffer.toreadonly()


TRANSPORTS: dict[str, Callable[[ExitStack, Path, Limits], Rig]] = {
    "tcp": TcpRig,
    "tls": TlsRig,
    "shm": ShmRig,
    "file": FileRig,
    "faulty": FaultyRig,
    "engine": EngineRig,
}

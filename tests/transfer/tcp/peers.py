"""Peers for the TCP tests: an honest one, and ones that follow a script after an honest
handshake."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import msgspec

from moontide.transfer import (
    SegmentRegistry,
    ServerLimits,
    TcpLimits,
    TcpTransport,
    TransferServer,
    wire,
)
from moontide.transfer.types import (
    BatchId,
    Instance,
    Opcode,
    SegmentAddress,
    SliceState,
    SliceStatus,
    TransferRequest,
)
from moontide.transfer.wire import Header, Kind

from ...waiting import wait_until

TOKEN = b"a cluster token"
PEER = str(Instance("peer", 1, bytes(16)))
SOON = 10.0
DONE = SliceStatus(SliceState.DONE)
Script = Callable[[socket.socket], None]


def exactly(sock: socket.socket, num_bytes: int) -> bytes:
    received = b""
    while len(received) < num_bytes:
        data = sock.recv(num_bytes - len(received))
        if not data:
            raise ConnectionError("the other side closed")
        received += data
    return received


def next_header(sock: socket.socket) -> Header:
    return wire.decode_header(exactly(sock, wire.HEADER_BYTES))


def data_frame(request: Header, payload: bytes) -> bytes:
    head = Header(Kind.DATA, request_id=request.request_id, length=request.length)
    return wire.encode_header(head) + payload


def serve_zeros(sock: socket.socket) -> None:
    """Answers every READ with zeros, until the connection ends."""
    while True:
        request = next_header(sock)
        sock.sendall(data_frame(request, bytes(request.length)))


def welcome_guest(sock: socket.socket, version: int) -> None:
    """An honest handshake of a server that speaks the wire up to `version`."""
    challenge = wire.Challenge(bytes(wire.NONCE_BYTES))
    sock.sendall(wire.encode_body(challenge))
    hello = wire.decode_body(Kind.HELLO, exactly(sock, next_header(sock).length), wire.Hello)
    agreed = min(version, hello.newest_version)
    proof = wire.server_proof(TOKEN, challenge, hello, agreed)
    sock.sendall(wire.encode_body(wire.Welcome(agreed, proof)))


class ScriptedServer:
    """Connection n follows `scripts[n]`, later ones are refused; a script that returns closes.
    Speaks the wire up to `version`."""

    def __init__(self, *scripts: Script, version: int = wire.WIRE_VERSION) -> None:
        self._scripts = scripts
        self._version = version
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self.connections = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        for script in self._scripts:
            try:
                sock, _ = self._listener.accept()
            except OSError:  # closed
                return
            self.connections += 1
            sock.settimeout(SOON)
            with sock:
                try:
                    welcome_guest(sock, self._version)
                    script(sock)
                except OSError:  # the client left
                    continue
        self._listener.close()

    def close(self) -> None:
        with suppress(OSError):  # every script has run
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(SOON)
        assert not self._thread.is_alive()


class Client:
    """A transport with a route to one peer."""

    def __init__(
        self,
        address: tuple[str, int],
        limits: TcpLimits | None = None,
        *,
        token: bytes = TOKEN,
        instance: str = PEER,
    ) -> None:
        self.instance = instance
        self.transport = TcpTransport(token, Instance.new("here"), limits)
        self.transport.add_route(instance, *address)

    def read(self, local: memoryview, offset: int = 0, *, within: float = SOON) -> BatchId:
        return self._submit(Opcode.READ, local, 0, offset, within)

    def write(self, local: memoryview, offset: int = 0, *, within: float = SOON) -> BatchId:
        return self._submit(Opcode.WRITE, local, 1, offset, within)

    def _submit(
        self, opcode: Opcode, local: memoryview, segment: int, offset: int, within: float
    ) -> BatchId:
        request = TransferRequest(opcode, local, SegmentAddress(self.instance, segment), offset)
        return self.transport.submit([request], deadline=time.monotonic() + within)

    def wait(self, batch: BatchId) -> SliceStatus:
        """The status of the batch's one slice, once it is terminal."""
        transport = self.transport
        wait_until(lambda: transport.poll(batch)[0].state is not SliceState.PENDING)
        [status] = transport.poll(batch)
        transport.forget(batch)
        return status


@contextmanager
def serving(
    segments: SegmentRegistry,
    limits: ServerLimits | None = None,
    *,
    instance: str = PEER,
    port: int = 0,
) -> Iterator[TransferServer]:
    listener = socket.create_server(("127.0.0.1", port))
    server = TransferServer(
        listener, token=TOKEN, instance=instance, segments=segments, limits=limits
    )
    server.start()
    try:
        yield server
    finally:
        server.close()


def connect(address: tuple[str, int], newest_version: int = wire.WIRE_VERSION) -> socket.socket:
    """A raw connection after an honest handshake."""
    sock = socket.create_connection(address, SOON)
    challenge = wire.decode_body(
        Kind.CHALLENGE, exactly(sock, next_header(sock).length), wire.Challenge
    )
    unproven = wire.Hello(1, newest_version, "raw/1/00", PEER, bytes(wire.NONCE_BYTES), b"")
    proof = wire.client_proof(TOKEN, challenge, unproven)
    sock.sendall(wire.encode_body(msgspec.structs.replace(unproven, proof=proof)))
    welcome = next_header(sock)
    assert welcome.kind is Kind.WELCOME
    exactly(sock, welcome.length)
    return sock


def scripted(
    stack: ExitStack, *scripts: Script, version: int = wire.WIRE_VERSION
) -> ScriptedServer:
    server = ScriptedServer(*scripts, version=version)
    stack.callback(server.close)
    return server


def client(stack: ExitStack, address: tuple[str, int], limits: TcpLimits | None = None) -> Client:
    made = Client(address, limits)
    stack.callback(made.transport.close)
    return made


def buffer(num_bytes: int, fill: bytes = b"-") -> memoryview:
    return memoryview(bytearray(fill * num_bytes))


def read_of(local: memoryview) -> TransferRequest:
    return TransferRequest(Opcode.READ, local, SegmentAddress(PEER, 0), 0)

"""A daemon that says what it should not: a relay that changes replies on their way."""

from __future__ import annotations

import socket
from collections.abc import Callable

from moontide.kvstore import wire

from ...relaying import SocketRelay

Alter = Callable[[wire.Reply], wire.Reply]


class Relay(SocketRelay):
    """Listens on a TCP port and passes every connection on to the daemon at `target`, HOST:PORT.
    Replies go through `alter`, which a test may exchange at any time."""

    def __init__(self, target: str) -> None:
        self.alter: Alter = lambda reply: reply
        host, _, port = target.rpartition(":")
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        super().__init__(listener, lambda: socket.create_connection((host, int(port))))

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def pass_on(self, client: socket.socket, server: socket.socket) -> None:
        while data := client.recv(1 << 16):
            server.sendall(data)

    def pass_back(self, server: socket.socket, client: socket.socket) -> None:
        while True:
            header = wire.decode_header(_receive(server, wire.HEADER.size))
            reply = self.alter(wire.decode_reply(_receive(server, header.body_bytes)))
            payload = _receive(server, header.payload_bytes)
            frame = wire.encode_frame(reply, header.request_id, header.payload_bytes)
            self.send(client, frame + payload)

    def send(self, client: socket.socket, frame: bytes) -> None:
        client.sendall(frame)


def _receive(sock: socket.socket, num_bytes: int) -> bytes:
    data = bytearray()
    while len(data) < num_bytes:
        part = sock.recv(num_bytes - len(data))
        if not part:
            raise EOFError
        data += part
    return bytes(data)

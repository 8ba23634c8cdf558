"""A daemon that says what it should not: a relay that changes replies on their way."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from moontide.kvstore import wire

Alter = Callable[[wire.Reply], wire.Reply]


class Relay:
    """Listens on a TCP port and passes every connection on to the daemon at `target`, HOST:PORT.
    Replies go through `alter`, which a test may exchange at any time."""

    def __init__(self, target: str) -> None:
        self.alter: Alter = lambda reply: reply
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets = [self._listener]
        self._threads: list[threading.Thread] = []
        self._spawn(self._accept)

    def close(self) -> None:
        for sock in self._sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _spawn(self, run: Callable[[], None]) -> None:
        def until_closed() -> None:
            with suppress(OSError, EOFError):
                run()

        thread = threading.Thread(target=until_closed)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            daemon = socket.create_connection(self._target)
            self._sockets += [client, daemon]
            self._spawn(lambda here=client, there=daemon: _pass_on(here, there))
            self._spawn(lambda here=client, there=daemon: self._pass_back(there, here))

    def _pass_back(self, daemon: socket.socket, client: socket.socket) -> None:
        try:
            while True:
                header = wire.decode_header(_receive(daemon, wire.HEADER.size))
                reply = self.alter(wire.decode_reply(_receive(daemon, header.body_bytes)))
                payload = _receive(daemon, header.payload_bytes)
                frame = wire.encode_frame(reply, header.request_id, header.payload_bytes)
                client.sendall(frame + payload)
        finally:
            _end(client)


def _pass_on(client: socket.socket, daemon: socket.socket) -> None:
    try:
        while data := client.recv(1 << 16):
            daemon.sendall(data)
    finally:
        _end(daemon)


def _receive(sock: socket.socket, num_bytes: int) -> bytes:
    data = bytearray()
    while len(data) < num_bytes:
        part = sock.recv(num_bytes - len(data))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


def _end(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)

"""Where a daemon is: `unix:PATH` or `tcp://host:port`."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from ...errors import InvalidRequest

MAX_SOCKET_PATH_BYTES = 107


@dataclass(frozen=True, slots=True)
class UnixAddress:
    path: str

    def open(self, timeout_s: float) -> socket.socket:
        """A connected socket. Raises OSError."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(timeout_s)
            sock.connect(self.path)
        except BaseException:
            sock.close()
            raise
        return sock

    def __str__(self) -> str:
        return f"unix:{self.path}"


@dataclass(frozen=True, slots=True)
class TcpAddress:
    host: str
    port: int

    def open(self, timeout_s: float) -> socket.socket:
        """A connected socket. Raises OSError."""
        sock = socket.create_connection((self.host, self.port), timeout_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def __str__(self) -> str:
        return f"tcp://{self.host}:{self.port}"


Address = UnixAddress | TcpAddress


def parse_address(text: str) -> Address:
    """Raises InvalidRequest naming what is wrong."""
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        size = len(os.fsencode(path))
        if not 1 <= size <= MAX_SOCKET_PATH_BYTES:
            raise InvalidRequest(
                f"socket path of {size} bytes in {text!r}; it must have 1..{MAX_SOCKET_PATH_BYTES}"
            )
        return UnixAddress(path)
    if text.startswith("tcp://"):
        host, _, port = text.removeprefix("tcp://").rpartition(":")
        if host and port.isascii() and port.isdigit() and 1 <= int(port) <= 65535:
            return TcpAddress(host.removeprefix("[").removesuffix("]"), int(port))
    raise InvalidRequest(f"store address {text!r}; give unix:PATH or tcp://HOST:PORT")

"""What stands between two sockets and changes what goes through."""

from __future__ import annotations

import abc
import socket
import threading
from collections.abc import Callable
from contextlib import suppress


class SocketRelay(abc.ABC):
    """Accepts connections at `listener` and opens another with `connect` for each. When one
    direction ends, for instance by OSError or EOFError, its target is shut down; `close` ends
    all."""

    def __init__(self, listener: socket.socket, connect: Callable[[], socket.socket]) -> None:
        self._listener = listener
        self._connect = connect
        self._sockets = [listener]
        self._threads: list[threading.Thread] = []
        self._spawn(self._accept)

    @abc.abstractmethod
    def pass_on(self, client: socket.socket, server: socket.socket) -> None:
        """What the client sends."""

    @abc.abstractmethod
    def pass_back(self, server: socket.socket, client: socket.socket) -> None:
        """What the server sends."""

    def close(self) -> None:
        for sock in self._sockets:
            _end(sock)
            sock.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            server = self._connect()
            self._sockets += [client, server]
            self._spawn(self.pass_on, client, server)
            self._spawn(self.pass_back, server, client)

    def _spawn(self, run: Callable[..., None], *sockets: socket.socket) -> None:
        def until_closed() -> None:
            try:
                with suppress(OSError, EOFError):
                    run(*sockets)
            finally:
                for target in sockets[1:]:
                    _end(target)

        thread = threading.Thread(target=until_closed)
        self._threads.append(thread)
        thread.start()


def _end(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)

"""A slow network in front of one address, for benchmarks and tests."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from functools import partial

_PIECE_SECONDS = 0.002  # of the link, sent at once
_LEAST_PIECE_BYTES = 512
_MOST_PIECE_BYTES = 64 << 10


class ThrottledRelay:
    """Passes connections on to `target`. What comes back shares one link of `bytes_per_s`; the
    other way is free. A context manager; `address` is where it listens."""

    def __init__(self, target: str, bytes_per_s: float) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self.bytes_per_s = bytes_per_s  # may be changed at any time
        self._link = threading.Lock()
        self._free_at = 0.0  # when the link has sent what it was given; guarded by _link
        self._sockets = [socket.create_server(("127.0.0.1", 0))]
        self._threads: list[threading.Thread] = []
        self.address = f"127.0.0.1:{self._sockets[0].getsockname()[1]}"

    def __enter__(self) -> ThrottledRelay:
        self._start(self._accept)
        return self

    def __exit__(self, *error: object) -> None:
        for sock in list(self._sockets):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            near, _ = self._sockets[0].accept()
            far = socket.create_connection(self._target)
            self._sockets += [near, far]
            self._start(partial(self._pass, near, far, lambda num_bytes: None))
            self._start(partial(self._pass, far, near, self._take_turn))

    def _pass(
        self, source: socket.socket, sink: socket.socket, wait: Callable[[int], None]
    ) -> None:
        try:
            while data := source.recv(self._piece_bytes()):
                wait(len(data))
                sink.sendall(data)
        finally:
            with contextlib.suppress(OSError):
                sink.shutdown(socket.SHUT_WR)

    def _piece_bytes(self) -> int:
        wanted = int(self.bytes_per_s * _PIECE_SECONDS)
        return min(max(wanted, _LEAST_PIECE_BYTES), _MOST_PIECE_BYTES)

    def _take_turn(self, num_bytes: int) -> None:
        """Until the link has carried these after all it was given before."""
        with self._link:
            now = time.monotonic()
            self._free_at = max(now, self._free_at) + num_bytes / self.bytes_per_s
            left = self._free_at - now
        time.sleep(left)

    def _start(self, run: Callable[[], None]) -> None:
        def until_closed() -> None:
            with contextlib.suppress(OSError):
                run()

        thread = threading.Thread(target=until_closed, name="throttled-relay", daemon=True)
        self._threads.append(thread)
        thread.start()

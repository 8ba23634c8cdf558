"""One read of a blocking socket, by polling first where the reply is expected soon."""

from __future__ import annotations

import math
import socket
from time import monotonic

from ...polling import Polling


class ReplyWait:
    """Sleeps at once until `poll`."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._polling = Polling(0.0)
        self._last_wait = math.inf

    def poll(self, seconds: float) -> None:
        self._polling = Polling(seconds)

    def may_poll(self) -> bool:
        """Whether anybody should look at this moment."""
        return self._polling.is_worthwhile(0.0, monotonic())

    def receive(self, max_bytes: int) -> bytes:
        """As the socket's `recv`."""
        begin = monotonic()
        polling = self._polling
        if polling.is_worthwhile(self._last_wait, begin):
            end = begin + polling.seconds
            while monotonic() < end:
                try:
                    return self._sock.recv(max_bytes, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    if not polling.let_others_run():
                        break
        data = self._sock.recv(max_bytes)
        self._last_wait = monotonic() - begin
        return data

"""A socket as `http.client` reads it."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .sockets import Socket


class Reading(io.RawIOBase):
    def __init__(self, sock: Socket) -> None:
        self._sock = sock

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._sock.reader_closed()

    def readinto(self, buffer: Any) -> int:
        return self._sock.recv_into(buffer)

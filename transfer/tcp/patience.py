"""Blocking calls that come back by themselves: the kernel keeps the time, so that none of them
needs a poll before it."""

from __future__ import annotations

import socket
import struct

LEAST_SECONDS = 0.001
_TIMEVAL = struct.Struct("@ll")


def be_patient(sock: socket.socket, seconds: float) -> None:
    """From now on calls block for at most so long, all waits of one call together: then they give
    what was moved, or raise BlockingIOError if nothing was."""
    micros = round(max(seconds, LEAST_SECONDS) * 1e6)
    value = _TIMEVAL.pack(micros // 1_000_000, micros % 1_000_000)
    sock.settimeout(None)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        sock.setsockopt(socket.SOL_SOCKET, option, value)

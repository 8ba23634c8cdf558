"""Bytes between a TLS connection and a plain socket pair, on one thread.

Whoever works on the plain end uses it like any socket: with flags, vectors, timeouts and poll.

    socket of this process ◄──pair──► tunnel ◄──TLS──► the other end
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import ssl

logger = logging.getLogger(__name__)

BUFFER_BYTES = 64 << 10
"""Of each direction."""
LINGER_SECONDS = 5.0
"""For what was sent before the plain end was closed."""
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class _Direction:
    """From one socket to the other: nothing is read while something waits to be sent."""

    def __init__(self, source: socket.socket, target: socket.socket, early: bytes) -> None:
        self._source = source
        self._target = target
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._buffer[: len(early)] = early
        self._waiting = self._buffer[: len(early)]
        self.ended = False  # the source has

    def __bool__(self) -> bool:
        """Something waits for room at the target."""
        return self._waiting.nbytes > 0

    def step(self) -> bool:
        """One send or one receive; False when it has to wait. Raises OSError from the target."""
        try:
            if self:
                self._waiting = self._waiting[self._target.send(self._waiting) :]
                return True
            if self.ended:
                return False
            received = self._receive()
        except _NOT_NOW:
            return False
        self._waiting = self._buffer[:received]
        self.ended = not received
        return True

    def _receive(self) -> int:
        try:
            return self._source.recv_into(self._buffer)
        except _NOT_NOW:
            raise
        except OSError as error:
            logger.debug("tunnel source lost error=%s", error)
            return 0


class Tunnel:
    """Owns both sockets; `run` returns when either has ended and what it had said is passed on."""

    def __init__(self, sealed: ssl.SSLSocket, inner: socket.socket, early: bytes = b"") -> None:
        self._sealed = sealed
        self._inner = inner
        self._inward = _Direction(sealed, inner, early)
        self._outward = _Direction(inner, sealed, b"")

    def run(self) -> None:
        self._sealed.setblocking(False)
        self._inner.setblocking(False)
        poller = select.poll()
        try:
            while not self._is_over():
                moved_in, moved_out = self._inward.step(), self._outward.step()
                if not moved_in and not moved_out and not self._wait(poller):
                    return
        except OSError as error:
            logger.debug("tunnel target lost error=%s", error)
        finally:
            self._close()

    def _is_over(self) -> bool:
        return any(way.ended and not way for way in (self._inward, self._outward))

    def _wait(self, poller: select.poll) -> bool:
        """False: the last bytes of a closed end find no taker."""
        poller.register(self._sealed, _interest(self._inward, self._outward))
        poller.register(self._inner, _interest(self._outward, self._inward))
        is_ending = self._inward.ended or self._outward.ended
        return bool(poller.poll(LINGER_SECONDS * 1000 if is_ending else None))

    def _close(self) -> None:
        """Also where a forked child holds the descriptors, too."""
        with contextlib.suppress(OSError, ValueError):
            self._sealed.unwrap()
        for sock in (self._sealed, self._inner):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()


def _interest(reading: _Direction, writing: _Direction) -> int:
    read = 0 if reading or reading.ended else select.POLLIN
    return read | (select.POLLOUT if writing else 0)

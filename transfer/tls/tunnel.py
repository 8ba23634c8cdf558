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
"""So long the last words of an end that has left wait for the other to take more of them."""
_LEFT = select.POLLRDHUP | select.POLLHUP | select.POLLERR
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class _Direction:
    """From one socket to the other: nothing is read while something waits to be sent."""

    def __init__(self, source: socket.socket, target: socket.socket, early: bytes) -> None:
        self.source = source
        self._target = target
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._buffer[: len(early)] = early
        self._waiting = self._buffer[: len(early)]
        self.source_left = False
        self.target_left = False

    def __bool__(self) -> bool:
        """Something waits for room at the target."""
        return self._waiting.nbytes > 0

    def step(self) -> bool:
        """One send or one receive; False when it has to wait, or an end has left."""
        try:
            if not self:
                return self._receive()
            self._waiting = self._waiting[self._target.send(self._waiting) :]
            return True
        except _NOT_NOW:
            return False
        except OSError as error:
            logger.debug("tunnel end lost error=%s", error)
            self.target_left |= bool(self)
            self.source_left |= not self
            return False

    def finish(self) -> None:
        """The source has left: what it had said goes on, as long as the target takes it."""
        self._target.settimeout(LINGER_SECONDS)
        while self.step():
            pass

    def _receive(self) -> bool:
        received = self.source.recv_into(self._buffer)
        self._waiting = self._buffer[:received]
        self.source_left |= not received
        return received > 0


class Tunnel:
    """Owns both sockets; `run` returns when either end has left, and what it had said is passed on
    or finds no taker."""

    def __init__(self, sealed: ssl.SSLSocket, inner: socket.socket, early: bytes = b"") -> None:
        self._sealed = sealed
        self._inner = inner
        inward, outward = _Direction(sealed, inner, early), _Direction(inner, sealed, b"")
        self._ways = ((inward, outward), (outward, inward))  # each with the way back

    def run(self) -> None:
        self._sealed.setblocking(False)
        self._inner.setblocking(False)
        try:
            self._until_one_leaves().finish()
        finally:
            self._close()

    def _until_one_leaves(self) -> _Direction:
        """The way from the end that has left."""
        poller = select.poll()
        while True:
            has_moved = [way.step() for way, _ in self._ways]
            for way, back in self._ways:
                if way.source_left or back.target_left:
                    return way
            if not any(has_moved):
                self._wait(poller)

    def _wait(self, poller: select.poll) -> None:
        for way, back in self._ways:
            interest = (0 if way else select.POLLIN) | (select.POLLOUT if back else 0)
            poller.register(way.source, interest | select.POLLRDHUP)
        left = [descriptor for descriptor, events in poller.poll() if events & _LEFT]
        for way, _ in self._ways:
            way.source_left |= way.source.fileno() in left

    def _close(self) -> None:
        """Also where a forked child holds the descriptors, too."""
        with contextlib.suppress(OSError, ValueError):
            self._sealed.setblocking(False)
            self._sealed.unwrap()
        for sock in (self._sealed, self._inner):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

"""The server of a process's segments, on its own threads."""

from __future__ import annotations

import logging
import socket
import threading
import time
from dataclasses import dataclass

from .. import wire
from ..errors import AccessDenied, Busy, Refused, TransferError
from ..registry import SegmentRegistry
from ..strangers import StrangerLimits, Strangers
from ..tls import NEEDS_TLS, TlsEndpoint
from ..transport import CLOSE_SECONDS
from ..types import TransferCounters
from .handshake import encode_refusal, receive_guest, refuse
from .serving import Serving, Tally

logger = logging.getLogger(__name__)

_ACCEPT_SECONDS = 0.5
"""Pause after a failed accept (out of descriptors): trying again at once would only spin."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    max_connections: int = 512  # one thread each
    handshake_seconds: float = 5.0
    stall_seconds: float = 10.0  # less than 64 KiB in this time while something is due
    idle_seconds: float = 120.0


@dataclass(frozen=True, slots=True)
class ServerReport:
    moved: TransferCounters  # bytes_out: READs served, bytes_in: WRITEs taken
    connections: int  # now
    accepted: int
    refused: int  # too many, wrong token, another instance or version
    broken: int  # stalled, malformed or lost in the middle of a frame


class TransferServer:
    """Serves `segments` to peers that hold `token` and mean `instance`, one thread a connection.

    With `tls` it speaks nothing else. Takes over the listening socket. `start` returns at once;
    `close` ends every connection and waits for the threads, after which no segment is touched any
    more."""

    def __init__(
        self,
        listener: socket.socket,
        *,
        token: bytes,
        instance: str,
        segments: SegmentRegistry,
        limits: ServerLimits | None = None,
        tls: TlsEndpoint | None = None,
    ) -> None:
        self._listener = listener
        self._token = token
        self._instance = instance
        self._segments = segments
        self._limits = limits or ServerLimits()
        self._tls = tls
        self._tally = Tally()
        self._lock = threading.Lock()
        self._guests: dict[socket.socket, threading.Thread] = {}
        self._strangers: Strangers[socket.socket] = Strangers(
            StrangerLimits.within(self._limits.max_connections)
        )
        self._accepted = self._refused = self._broken = 0
        self._closed = threading.Event()
        self._acceptor = threading.Thread(target=self._accept, name="transfer-accept", daemon=True)

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens: (host, port)."""
        host, port = self._listener.getsockname()[:2]
        return host, port

    def start(self) -> None:
        self._listener.settimeout(None)
        self._acceptor.start()

    def report(self) -> ServerReport:
        with self._lock:
            return ServerReport(
                self._tally.snapshot(),
                len(self._guests),
                self._accepted,
                self._refused,
                self._broken,
            )

    def close(self) -> None:
        """Idempotent."""
        self._closed.set()
        _end(self._listener)  # wakes the accept
        if self._acceptor.ident is not None:
            self._acceptor.join(CLOSE_SECONDS)
        self._listener.close()
        with self._lock:
            guests = dict(self._guests)
        for sock in guests:
            _end(sock)
        deadline = time.monotonic() + CLOSE_SECONDS
        for thread in guests.values():
            thread.join(max(deadline - time.monotonic(), 0))

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                sock, address = self._listener.accept()
            except OSError as error:
                if not self._closed.is_set():
                    logger.warning("transfer accept failed error=%s", error)
                    self._closed.wait(_ACCEPT_SECONDS)
                continue
            self._admit(sock, address[0])

    def _admit(self, accepted: socket.socket, host: str) -> None:
        with self._lock:
            self._accepted += 1
            full = len(self._guests) >= self._limits.max_connections
            self._refused += full
        if full:
            self._turn_away(accepted)
            return
        try:
            sock = self._open(accepted, host)
        except OSError as error:
            logger.warning("transfer peer not served error=%s", error)
            accepted.close()
            return
        thread = threading.Thread(
            target=self._serve, args=(sock,), name="transfer-serve", daemon=True
        )
        with self._lock:
            self._guests[sock] = thread
            longest = self._strangers.arrived(sock, host)
        if longest is not None:
            _end(longest)
        try:
            thread.start()
        except RuntimeError as error:
            logger.warning("transfer peer not served error=%s", error)
            self._leave(sock)

    def _open(self, accepted: socket.socket, host: str) -> socket.socket:
        """Raises OSError."""
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is None:
            return accepted
        refusal = encode_refusal(AccessDenied(NEEDS_TLS))
        return self._tls.take(accepted, plain_refusal=refusal, peer=host)

    def _turn_away(self, accepted: socket.socket) -> None:
        """Without words to who would take them for broken TLS."""
        if self._tls is None:
            busy = Busy(f"{self._limits.max_connections} connections are served; retry")
            refuse(accepted, busy)
        accepted.close()

    def _serve(self, sock: socket.socket) -> None:
        """One connection, from its handshake to its end; whatever ends it ends only this one."""
        try:
            self._serve_guest(sock)
        except Refused as error:
            logger.warning("transfer peer refused reason=%s", error.reason)
            self._count_refused()
        except (TransferError, OSError) as error:
            logger.info("transfer connection broken error=%s", error)
            self._count_broken()
        except Exception:  # thread boundary
            logger.exception("transfer connection failed")
            self._count_broken()
        finally:
            self._leave(sock)

    def _serve_guest(self, sock: socket.socket) -> None:
        limits = self._limits
        deadline = time.monotonic() + limits.handshake_seconds
        guest = receive_guest(
            sock,
            self._token,
            server=self._instance,
            deadline=deadline,
            on_proved=lambda: self._know(sock),
        )
        logger.debug("transfer peer admitted client=%s", guest.client)
        Serving(
            sock,
            self._segments,
            self._tally,
            version=wire.common_version(guest.oldest_version, guest.newest_version),
            idle_seconds=limits.idle_seconds,
            stall_seconds=limits.stall_seconds,
        ).run()

    def _know(self, sock: socket.socket) -> None:
        with self._lock:
            self._strangers.left(sock)

    def _leave(self, sock: socket.socket) -> None:
        with self._lock:
            del self._guests[sock]
            self._strangers.left(sock)
        sock.close()

    def _count_refused(self) -> None:
        with self._lock:
            self._refused += 1

    def _count_broken(self) -> None:
        with self._lock:
            self._broken += 1


def _end(sock: socket.socket) -> None:
    """Wakes whoever waits on the socket; it is closed by its owner."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it had ended

"""The daemon's data side: listeners, sessions, and the clock that drives the store."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable

from moontide.transfer import NEEDS_TLS, StrangerLimits, Strangers, TlsEndpoint

from .. import wire
from ..errors import AccessDenied, Busy, StoreError
from ..polling import Polling
from ..store import Store
from .budget import Budget
from .counters import Counters
from .gate import Gate, Visitor, new_nonce
from .listeners import Acceptor, peer_pid, prepare_remote
from .session import Session
from .tiers import Tiering
from .turns import Turns
from .vigil import Vigil

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.1
BUSY_TICK_SECONDS = 0.02
SWEEP_SECONDS = 1.0
GREETING_SECONDS = 10.0


class DataServer:
    """Serves clients over any number of listening sockets, at most `max_clients` connections at
    once. Lives in one loop, which owns the store.

    `connection_bytes` bounds what requests and replies under way of all connections take of the
    daemon's own memory: long frame heads, requests being served or waiting (as they are decoded),
    heads of replies not sent yet. Beside it each connection has INITIAL_BYTES to receive into, and
    the reply to a request that fits there. With `tls` remote connections speak nothing else."""

    def __init__(
        self,
        store: Store,
        *,
        loop: asyncio.AbstractEventLoop,
        gate: Gate,
        counters: Counters,
        max_clients: int,
        connection_bytes: int,
        stall_seconds: float,
        poll_seconds: float,
        tiering: Tiering | None,
        is_member: Callable[[], bool],
        tls: TlsEndpoint | None = None,
    ) -> None:
        self._store = store
        self._loop = loop
        self._turns = Turns(loop)
        self._vigil = Vigil(loop, self._turns, Polling(poll_seconds))
        self._gate = gate
        self._counters = counters
        self._max_clients = max_clients
        self._stall_seconds = stall_seconds
        self._tiering = tiering
        self._is_member = is_member
        self._tls = tls
        self._sessions: dict[Session, None] = {}  # in the order they came
        self._strangers: Strangers[Session] = Strangers(StrangerLimits.within(max_clients))
        self._memory = Budget(connection_bytes, "requests and replies under way")
        self._acceptors: list[Acceptor] = []
        self._swept = time.monotonic()
        store.count_suspended(_suspended_seconds())
        store.beat(self._swept)
        self._timer = loop.call_later(TICK_SECONDS, self._tick)

    @property
    def num_connections(self) -> int:
        return len(self._sessions)

    @property
    def connection_bytes(self) -> int:
        """Taken now by requests and replies under way."""
        return self._memory.used_bytes

    def set_stall_seconds(self, seconds: float) -> None:
        self._stall_seconds = seconds

    def listen(self, listener: socket.socket) -> None:
        """Takes connections from `listener`, which stays the caller's to close."""
        self._acceptors.append(
            Acceptor(
                listener,
                loop=self._loop,
                on_connection=self._take,
                on_failure=self._count_failed_accept,
            )
        )

    def close(self) -> None:
        """Stops taking connections and ends those there are."""
        self._timer.cancel()
        for acceptor in self._acceptors:
            acceptor.close()
        for session in list(self._sessions):
            session.close("shutdown")
        self._vigil.close()
        self._gate.clients.close()

    def _take(self, connection: socket.socket, host: str) -> None:
        self._counters.connections += 1
        if len(self._sessions) >= self._max_clients:
            self._counters.refused["clients"] += 1
            self._turn_away(connection)
        elif connection.family == socket.AF_UNIX:
            self._open(connection, Visitor(peer_pid(connection), None))
        else:
            self._take_remote(connection, host)

    def _take_remote(self, connection: socket.socket, host: str) -> None:
        """Too many that never said Hello end one of them."""
        prepare_remote(connection)
        if self._tls is not None:
            refusal = _encode_refusal(AccessDenied(NEEDS_TLS))
            try:
                connection = self._tls.take(connection, plain_refusal=refusal, peer=host)
            except OSError as error:
                logger.warning("connection_not_taken peer=%s error=%s", host, error)
                connection.close()
                return
        session = self._open(connection, Visitor(0, new_nonce()))
        for stranger in self._strangers:
            if stranger.greeted:
                self._strangers.left(stranger)
        longest = self._strangers.arrived(session, host)
        if longest is not None:
            longest.close("stalled")

    def _open(self, connection: socket.socket, visitor: Visitor) -> Session:
        session = Session(
            connection,
            visitor,
            loop=self._loop,
            turns=self._turns,
            vigil=self._vigil,
            gate=self._gate,
            memory=self._memory,
            counters=self._counters,
            on_close=self._leave,
        )
        self._sessions[session] = None
        session.start()
        return session

    def _leave(self, session: Session) -> None:
        self._sessions.pop(session, None)
        self._strangers.left(session)

    def _turn_away(self, connection: socket.socket) -> None:
        """Without words to who would take them for broken TLS."""
        if self._tls is None or connection.family == socket.AF_UNIX:
            limit = self._max_clients
            _refuse(
                connection,
                Busy(f"{limit} connections are open, the limit; raise --max-clients or retry"),
            )
        else:
            connection.close()

    def _count_failed_accept(self) -> None:
        self._counters.refused["accept"] += 1

    def _tick(self) -> None:
        now = time.monotonic()
        if self._is_member():  # else who knows where a string lies has to ask, and misses
            self._store.beat(now)
        self._store.count_suspended(_suspended_seconds())
        more = self._store.expire(time.monotonic())
        if self._tiering is not None:
            self._tiering.tick(time.monotonic())
        self._timer = self._loop.call_later(BUSY_TICK_SECONDS if more else TICK_SECONDS, self._tick)
        for client, segment in self._store.take_revocations(time.monotonic()):
            self._gate.clients.revoke(client, segment)
        if time.monotonic() - self._swept >= SWEEP_SECONDS:
            self._swept = time.monotonic()
            self._sweep()

    def _sweep(self) -> None:
        """Drops connections that keep bytes under way without moving any."""
        now = time.monotonic()
        for session in list(self._sessions):
            since = session.stalled_since()
            limit = self._stall_seconds if session.greeted else GREETING_SECONDS
            if since is not None and now - since > min(limit, self._stall_seconds):
                logger.warning("connection stalled peer=%s seconds=%.1f", session, now - since)
                session.close("stalled")


def _refuse(connection: socket.socket, error: StoreError) -> None:
    """Says why, as far as the socket takes it at once, and hangs up."""
    connection.setblocking(False)
    with connection, contextlib.suppress(OSError):
        connection.send(_encode_refusal(error))
        connection.shutdown(socket.SHUT_WR)


def _encode_refusal(error: StoreError) -> bytes:
    failure = wire.Failure(error.code, str(error))
    return wire.encode_frame(failure, 0, version=wire.OLDEST_VERSION)


def _suspended_seconds() -> float:
    """So long the machine has slept since its boot."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()

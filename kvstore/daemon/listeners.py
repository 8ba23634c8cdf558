"""Sockets that connections come in on."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
import struct
from collections.abc import Callable
from pathlib import Path

from ..errors import Conflict, InvalidRequest

logger = logging.getLogger(__name__)

MAX_SOCKET_PATH_BYTES = 107
BACKLOG = 512
ACCEPTS_PER_TURN = 32
LOST_SECONDS = 30
RETRY_SECONDS = 0.5
"""Pause after a failed accept (out of descriptors): trying again at once would only spin."""


class UnixListener:
    """A unix socket of mode 0660. `close` removes the file if it is still this one.

    Raises InvalidRequest for a path that is too long or taken by something else, Conflict when a
    live daemon listens there. A socket left behind by a dead one is replaced."""

    def __init__(self, path: Path) -> None:
        self.path = path
        _check_path(path)
        _remove_stale(path)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        umask = os.umask(0o117)
        try:
            self.socket.bind(os.fspath(path))
        except OSError as error:
            self.socket.close()
            raise InvalidRequest(f"socket {path}: {error.strerror}") from error
        finally:
            os.umask(umask)
        self.socket.listen(BACKLOG)
        self.socket.setblocking(False)
        self._inode = path.stat().st_ino

    def close(self) -> None:
        self.socket.close()
        try:
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()
        except FileNotFoundError:
            pass


class Acceptor:
    """Hands each new connection of a listening socket and the host it comes from ("" on a unix
    socket) to `on_connection`, a few a turn."""

    def __init__(
        self,
        listener: socket.socket,
        *,
        loop: asyncio.AbstractEventLoop,
        on_connection: Callable[[socket.socket, str], None],
        on_failure: Callable[[], None],
    ) -> None:
        self._listener = listener
        self._loop = loop
        self._on_connection = on_connection
        self._on_failure = on_failure
        self._retry: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        loop.add_reader(listener.fileno(), self._accept)

    def close(self) -> None:
        """Stops accepting; the listening socket stays its owner's."""
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._listener.fileno())

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                connection, address = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError, InterruptedError):
                return
            except OSError as error:  # out of descriptors or memory: others must end first
                self._pause(error)
                return
            self._on_connection(connection, address[0] if address else "")

    def _pause(self, error: OSError) -> None:
        logger.warning("accepting_paused error=%s", error.strerror)
        self._on_failure()
        self._loop.remove_reader(self._listener.fileno())
        self._retry = self._loop.call_later(RETRY_SECONDS, self._resume)

    def _resume(self) -> None:
        self._retry = None
        self._loop.add_reader(self._listener.fileno(), self._accept)


def peer_pid(connection: socket.socket) -> int:
    """Process that connected a unix socket; 0 when it lies outside this pid namespace."""
    credentials = struct.Struct("3i")
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size)
    pid: int = credentials.unpack(data)[0]
    return pid


def _check_path(path: Path) -> None:
    num_bytes = len(os.fsencode(path))
    if num_bytes > MAX_SOCKET_PATH_BYTES:
        raise InvalidRequest(
            f"socket path {path} has {num_bytes} bytes, the kernel takes "
            f"{MAX_SOCKET_PATH_BYTES}: give a shorter --socket"
        )


def _remove_stale(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        return
    if not stat.S_ISSOCK(mode):
        raise InvalidRequest(f"socket {path} exists and is no socket: remove it or give another")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except TimeoutError:
            pass  # its backlog is full: it lives
    raise Conflict(f"another process listens on socket {path}: stop it or give another --socket")


def prepare_remote(connection: socket.socket) -> None:
    """A peer whose machine or link is gone for LOST_SECONDS hangs up, whoever waits for whom: what
    it held is given up then."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, LOST_SECONDS // 2)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, LOST_SECONDS // 6)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, LOST_SECONDS * 1000)

"""One end's TLS: opens and takes connections, and says why one did not come about.

A server takes its time over nobody: who shows no TLS within PLAIN_SECONDS is told so in the plain
words of the wire behind it. A client waits for the first bytes of the server, which speaks first on
every wire here: a server that does not accept its certificate says so only then.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ..errors import AccessDenied, InvalidRequest, TransferError, Unavailable
from .certificates import Contexts, TlsFiles, fix_for, load_contexts, read_certificate, told
from .tunnel import BUFFER_BYTES, Tunnel

logger = logging.getLogger(__name__)

PLAIN_SECONDS = 1.5
"""A client that speaks TLS speaks at once; less than any client waits for a plain challenge."""
HANDSHAKE_SECONDS = 5.0
NEEDS_TLS = (
    "this store takes TLS only: give tls_cert, tls_key and tls_ca (connect: tls=TlsFiles(…)) of "
    "its cluster"
)
_HANDSHAKE_RECORD = b"\x16"
_FOREIGN = ("WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")


class TlsEndpoint:
    """Thread-safe. Files that were replaced (renewed) are used from the next connection on; as long
    as the new ones do not pass, the old ones are. Raises InvalidRequest for files that do not."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._stamp = _stamp(files)
        self._contexts = load_contexts(files)

    def dial(self, sock: socket.socket, *, peer: str, deadline: float) -> socket.socket:
        """The plain end of a connected socket, which is taken over. Blocks until the server has
        spoken. Raises AccessDenied, Unavailable."""
        sealed = self._current().client.wrap_socket(sock, do_handshake_on_connect=False)
        try:
            early = _greet(sealed, deadline)
            if not early:
                raise Unavailable(f"{peer} hung up in the TLS handshake: it may be full")
            return _dig(sealed, early)
        except OSError as error:
            sealed.close()
            raise self.explain(error, peer) from error
        except BaseException:
            sealed.close()
            raise

    def take(self, sock: socket.socket, *, plain_refusal: bytes, peer: str) -> socket.socket:
        """The plain end of an accepted socket, which is taken over, at once; it ends when the
        handshake fails, and the handshake when it is closed. Raises OSError."""
        inner, outer = socket.socketpair()
        try:
            _start(lambda: self._receive(sock, outer, plain_refusal, peer))
        except OSError:
            inner.close()
            outer.close()
            raise
        return inner

    def _receive(
        self, sock: socket.socket, outer: socket.socket, plain_refusal: bytes, peer: str
    ) -> None:
        sealed = sock
        try:
            if not _speaks_tls(sock, outer):
                _refuse_plainly(sock, plain_refusal)
                raise AccessDenied("it speaks no TLS")
            sealed = self._current().server.wrap_socket(
                sock, server_side=True, do_handshake_on_connect=False
            )
            _shake_hands(sealed, outer)
        except (TransferError, OSError) as error:
            logger.warning("tls_refused peer=%s error=%s", peer, self._why(error))
            sealed.close()
            outer.close()
        else:
            Tunnel(sealed, outer).run()

    def client_context(self) -> ssl.SSLContext:
        """For who does TLS with asyncio; what goes wrong there, `explain` explains."""
        return self._current().client

    def explain(self, error: OSError, peer: str) -> TransferError:
        """Why a client's handshake did not come about, and what helps."""
        if isinstance(error, ssl.SSLCertVerificationError):
            return AccessDenied(
                f"the certificate of {peer} does not pass with tls_ca {self._files.ca}: "
                f"{told(error)}; {fix_for(error)}"
            )
        if not isinstance(error, ssl.SSLError) or isinstance(error, ssl.SSLEOFError):
            return Unavailable(f"{peer}: TLS handshake: {error.strerror or error}")
        if error.reason in _FOREIGN:
            return AccessDenied(
                f"{peer} speaks no TLS: start that store with --tls-cert, --tls-key and --tls-ca, "
                "or leave TLS out here"
            )
        return AccessDenied(
            f"{peer} refused tls_cert {self._files.cert} ({self._own()}): {told(error)}; "
            f"{fix_for(error)}"
        )

    def _why(self, error: Exception) -> str:
        """At the server, which sees no more of the other's certificate than the verdict."""
        if isinstance(error, ssl.SSLCertVerificationError):
            return (
                f"its certificate does not pass with tls_ca {self._files.ca}: {told(error)}; "
                f"{fix_for(error)}"
            )
        return told(error) if isinstance(error, ssl.SSLError) else str(error)

    def _own(self) -> str:
        try:
            shown = read_certificate(self._files)
        except InvalidRequest as error:
            return str(error)
        return f"{shown.subject}, until {shown.expires_on}"

    def _current(self) -> Contexts:
        with self._lock:
            stamp = _stamp(self._files)
            if stamp != self._stamp:
                self._stamp = stamp
                try:
                    self._contexts = load_contexts(self._files)
                except InvalidRequest as error:
                    logger.warning("tls_files_not_taken error=%s", error)
                else:
                    logger.info("tls_files_taken cert=%s", self._files.cert)
            return self._contexts


def _greet(sealed: ssl.SSLSocket, deadline: float) -> bytes:
    """The first bytes of the server; none when it hangs up. Raises OSError."""
    sealed.settimeout(_left(deadline))
    sealed.do_handshake()
    sealed.settimeout(_left(deadline))
    return sealed.recv(BUFFER_BYTES)


def _left(deadline: float) -> float:
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise TimeoutError("timed out")
    return remaining


def _dig(sealed: ssl.SSLSocket, early: bytes) -> socket.socket:
    """The plain end of a tunnel, which has started. Raises OSError."""
    inner, outer = socket.socketpair()
    try:
        _start(Tunnel(sealed, outer, early).run)
    except OSError:
        inner.close()
        outer.close()
        raise
    return inner


def _start(run: Callable[[], None]) -> None:
    try:
        threading.Thread(target=run, name="transfer-tls", daemon=True).start()
    except RuntimeError as error:
        raise OSError("this process can start no more threads") from error


def _speaks_tls(sock: socket.socket, plain_end: socket.socket) -> bool:
    """As told by its first byte. Raises OSError."""
    if not _wait(sock, select.POLLIN, plain_end, time.monotonic() + PLAIN_SECONDS):
        return False
    return sock.recv(1, socket.MSG_PEEK) == _HANDSHAKE_RECORD


def _shake_hands(sealed: ssl.SSLSocket, plain_end: socket.socket) -> None:
    """At the server. Raises OSError."""
    deadline = time.monotonic() + HANDSHAKE_SECONDS
    sealed.setblocking(False)
    while True:
        try:
            sealed.do_handshake()
            return
        except ssl.SSLWantReadError:
            wanted = select.POLLIN
        except ssl.SSLWantWriteError:
            wanted = select.POLLOUT
        if not _wait(sealed, wanted, plain_end, deadline):
            raise TimeoutError("timed out")


def _wait(sock: socket.socket, wanted: int, plain_end: socket.socket, deadline: float) -> bool:
    """False at the deadline. Raises ConnectionAbortedError when the plain end was closed."""
    poller = select.poll()
    poller.register(sock, wanted)
    poller.register(plain_end, select.POLLRDHUP)
    ready = dict(poller.poll(max(deadline - time.monotonic(), 0) * 1000))
    if plain_end.fileno() in ready:
        raise ConnectionAbortedError("it was dropped in the TLS handshake")
    return bool(ready)


def _refuse_plainly(sock: socket.socket, words: bytes) -> None:
    """If the socket takes them at once."""
    with contextlib.suppress(OSError):
        sock.send(words, socket.MSG_DONTWAIT)
        sock.shutdown(socket.SHUT_WR)


def _stamp(files: TlsFiles) -> tuple[int, ...]:
    """Changes with the files; 0 for one that is away just now."""
    return tuple(_changed_at(path) for path in (files.cert, files.key, files.ca))


def _changed_at(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0

"""TLS: bytes both ways under plain sockets, and why a connection did not come about."""

from __future__ import annotations

import dataclasses
import os
import socket
import struct
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from moontide.transfer import TlsEndpoint, TlsFiles, read_certificate
from moontide.transfer.errors import AccessDenied, InvalidRequest, Unavailable
from moontide.transfer.tls import endpoint, tunnel

from ..authority import Authority
from ..waiting import wait_until

SOON = 10.0
GREETING = b"the server speaks first"
REFUSAL = b"this is no plain port"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


class Server:
    """Takes one connection after another; `plain` is the latest one's plain end."""

    def __init__(self, stack: ExitStack, tls: TlsEndpoint) -> None:
        self._listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self._stack = stack
        self._tls = tls
        self.plain: socket.socket | None = None
        thread = threading.Thread(target=self._take)
        thread.start()
        stack.callback(thread.join, SOON)
        stack.callback(self._listener.shutdown, socket.SHUT_RDWR)

    def dial(self, tls: TlsEndpoint) -> socket.socket:
        sock = tls.dial(self.connect(), peer="the peer", deadline=time.monotonic() + SOON)
        sock.settimeout(SOON)
        return self._stack.enter_context(sock)

    def connect(self) -> socket.socket:
        return socket.create_connection(self._listener.getsockname(), SOON)

    def _take(self) -> None:
        while True:
            try:
                accepted = self._listener.accept()[0]
            except OSError:
                return
            plain = self._tls.take(accepted, plain_refusal=REFUSAL, peer="a client")
            self._stack.enter_context(plain)
            plain.settimeout(SOON)
            with suppress(BrokenPipeError):  # who speaks no TLS may be gone already
                plain.sendall(GREETING)
            self.plain = plain


def received(sock: socket.socket, num_bytes: int) -> bytes:
    data = bytearray()
    while len(data) < num_bytes and (part := sock.recv(num_bytes - len(data))):
        data += part
    return bytes(data)


def pair(stack: ExitStack, authority: Authority) -> tuple[socket.socket, socket.socket]:
    """The plain ends of client and server, after the greeting."""
    server = Server(stack, TlsEndpoint(authority.issue("server")))
    client = server.dial(TlsEndpoint(authority.issue("client")))
    assert received(client, len(GREETING)) == GREETING
    wait_until(lambda: server.plain is not None)
    assert server.plain is not None
    return client, server.plain


def test_files_are_named_by_texts_as_well_as_by_paths(authority: Authority) -> None:
    files = authority.issue("node-a")
    named = TlsFiles(str(files.cert), str(files.key), str(files.ca))
    assert named == files
    TlsEndpoint(named)  # reads them all
    assert read_certificate(named) == read_certificate(files)


def test_much_goes_both_ways_at_once(stack: ExitStack, authority: Authority) -> None:
    client, server = pair(stack, authority)
    there, back = os.urandom(1 << 20), os.urandom(1 << 20)
    senders = [
        threading.Thread(target=client.sendall, args=(there,)),
        threading.Thread(target=server.sendall, args=(back,)),
    ]
    for sender in senders:
        sender.start()
    assert received(client, len(back)) == back
    assert received(server, len(there)) == there
    for sender in senders:
        sender.join()


@pytest.mark.parametrize("leaver", ["client", "server"])
def test_what_was_said_before_the_end_arrives_and_then_the_end(
    stack: ExitStack, authority: Authority, leaver: str
) -> None:
    client, server = pair(stack, authority)
    leaving, staying = (client, server) if leaver == "client" else (server, client)
    leaving.sendall(b"last words")
    leaving.close()
    assert received(staying, 100) == b"last words"


def fill(sock: socket.socket) -> None:
    """Until nobody takes more."""
    sock.settimeout(0.3)
    with suppress(TimeoutError):
        while sock.send(bytes(1 << 16)):
            pass


@pytest.mark.parametrize("leaver", ["client", "server"])
def test_last_words_that_find_no_taker_keep_no_thread(
    stack: ExitStack, authority: Authority, leaver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnel, "LINGER_SECONDS", 0.1)
    server = Server(stack, TlsEndpoint(authority.issue("server")))
    before = set(threading.enumerate())
    context = TlsEndpoint(authority.issue("client")).client_context()
    client = stack.enter_context(context.wrap_socket(server.connect()))
    wait_until(lambda: server.plain is not None)
    assert server.plain is not None
    if leaver == "client":
        fill(client)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
    else:
        fill(server.plain)
        server.plain.close()
    wait_until(lambda: set(threading.enumerate()) <= before)


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01\x02\x00\x01"])
def test_a_handshake_ends_when_its_plain_end_is_closed(
    stack: ExitStack, authority: Authority, said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever closes silent connections to make room has made it."""
    monkeypatch.setattr(endpoint, "PLAIN_SECONDS", 60.0)
    monkeypatch.setattr(endpoint, "HANDSHAKE_SECONDS", 60.0)
    server = Server(stack, TlsEndpoint(authority.issue("server")))
    with server.connect() as silent:
        silent.sendall(said)
        wait_until(lambda: server.plain is not None)
        assert server.plain is not None
        server.plain.close()
        with suppress(ConnectionResetError):
            assert received(silent, 1) == b""


def test_a_plain_client_is_told(stack: ExitStack, authority: Authority) -> None:
    server = Server(stack, TlsEndpoint(authority.issue("server")))
    with server.connect() as silent:
        assert received(silent, 1000) == REFUSAL
    with server.connect() as chatty:
        chatty.sendall(b"G")
        assert received(chatty, 1000) == REFUSAL


def test_a_plain_server_is_named(stack: ExitStack, authority: Authority) -> None:
    tls = TlsEndpoint(authority.issue("client"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sock = socket.create_connection(listener.getsockname())
        with listener.accept()[0] as accepted:
            accepted.sendall(GREETING)
            with pytest.raises(AccessDenied, match="the peer speaks no TLS: start that store with"):
                tls.dial(sock, peer="the peer", deadline=time.monotonic() + SOON)


def test_a_server_that_says_nothing_costs_no_more_than_the_deadline(authority: Authority) -> None:
    tls = TlsEndpoint(authority.issue("client"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sock = socket.create_connection(listener.getsockname())
        with pytest.raises(Unavailable, match=r"the peer: TLS handshake: .*timed out"):
            tls.dial(sock, peer="the peer", deadline=time.monotonic() + 0.1)


def test_a_client_that_stops_in_the_handshake_is_left(
    stack: ExitStack, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "HANDSHAKE_SECONDS", 0.1)
    server = Server(stack, TlsEndpoint(authority.issue("server")))
    with server.connect() as stopping:
        stopping.sendall(b"\x16\x03\x01\x02\x00\x01")
        assert received(stopping, 1) == b""


def test_a_certificate_of_another_ca_is_refused_by_either_end(
    stack: ExitStack, authority: Authority, tmp_path: Path
) -> None:
    """The one that trusts both CAs is refused by the one that does not."""
    other = Authority(tmp_path / "other")
    both = tmp_path / "both.pem"
    both.write_bytes(authority.ca.read_bytes() + other.ca.read_bytes())
    foreign = other.issue("foreign")
    server = Server(stack, TlsEndpoint(authority.issue("server")))
    with pytest.raises(AccessDenied, match=f"of the peer does not pass with tls_ca {other.ca}: "):
        server.dial(TlsEndpoint(foreign))
    trusting = dataclasses.replace(foreign, ca=both)
    told = rf"the peer refused tls_cert {foreign.cert} \(.*commonName=foreign, until .*signed by"
    with pytest.raises(AccessDenied, match=told):
        server.dial(TlsEndpoint(trusting))


def test_files_that_do_not_pass_are_refused_by_name(authority: Authority, tmp_path: Path) -> None:
    good, other = authority.issue("good"), Authority(tmp_path / "other").issue("other")
    nothing = tmp_path / "nothing.pem"
    nothing.write_text("no PEM\n")
    wrong: dict[TlsFiles, str] = {
        dataclasses.replace(good, cert=tmp_path / "away"): r"away cannot be read: No such file",
        dataclasses.replace(good, key=other.key): "other.key.*key values mismatch.*certificate's",
        dataclasses.replace(good, ca=nothing): "nothing.pem.*has to be PEM",
        dataclasses.replace(
            good, ca=other.ca
        ): "commonName=good.*does not pass with tls_ca.*signed",
        authority.issue_expired("old"): "commonName=old.*certificate has expired; renew it",
    }
    for files, told in wrong.items():
        with pytest.raises(InvalidRequest, match=told):
            TlsEndpoint(files)


def test_an_expired_certificate_can_still_be_read(authority: Authority) -> None:
    shown = read_certificate(authority.issue_expired("old"))
    assert "commonName=old" in shown.subject
    assert "Moontide tests" in shown.issuer
    assert shown.expires < time.time()


def test_renewed_files_are_used_and_broken_ones_are_not(
    stack: ExitStack, authority: Authority, tmp_path: Path
) -> None:
    """Renewed here by another CA, so that it shows who is let in."""
    files = authority.issue("server")
    server = Server(stack, TlsEndpoint(files))
    earlier = TlsEndpoint(authority.issue("client"))
    files.cert.write_text("half written")
    server.dial(earlier)
    other = Authority(tmp_path / "other")
    for new, old in zip(
        dataclasses.astuple(other.issue("server")), dataclasses.astuple(files), strict=True
    ):
        old.write_bytes(new.read_bytes())
    server.dial(TlsEndpoint(other.issue("client")))
    with pytest.raises(AccessDenied):
        server.dial(earlier)

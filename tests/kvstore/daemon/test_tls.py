"""Stores and clients that speak TLS, and those that do not, at each other's ports."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from moontide.kvstore import (
    AccessDenied,
    InvalidRequest,
    StoreUnavailable,
    TlsFiles,
    connect,
)
from moontide.kvstore.daemon.settings import StoreSettings
from moontide.kvstore.types import PutStatus

from ...authority import Authority, flags
from ...relaying import SocketRelay
from ...store_process import StartStore, StoreProcess, start_nodes
from ...waiting import wait_until

SECONDS = 10.0
MARK = b"seen by nobody on the way"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def client_files(authority: Authority) -> TlsFiles:
    return authority.issue("client")


@pytest.fixture(scope="module")
def nodes(
    module_store_daemon: StartStore,
    tmp_path_factory: pytest.TempPathFactory,
    authority: Authority,
) -> list[StoreProcess]:
    """Linked to each other: their links and data ports speak TLS."""
    parent = tmp_path_factory.mktemp("cluster")
    return start_nodes(module_store_daemon, parent, 2, *flags(authority.issue("node")))


class Listening(SocketRelay):
    """Passes everything on and keeps a copy."""

    def __init__(self, target: str) -> None:
        self.heard = bytearray()
        host, _, port = target.rpartition(":")
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        super().__init__(listener, lambda: socket.create_connection((host, int(port))))

    def pass_on(self, client: socket.socket, server: socket.socket) -> None:
        while data := client.recv(1 << 16):
            self.heard += data
            server.sendall(data)

    def pass_back(self, server: socket.socket, client: socket.socket) -> None:
        self.pass_on(server, client)


@pytest.fixture
def relay(nodes: list[StoreProcess]) -> Iterator[Listening]:
    relay = Listening(nodes[0].listen or "")
    yield relay
    relay.close()


def test_a_remote_client_puts_and_gets_and_nobody_on_the_way_can_read_it(
    nodes: list[StoreProcess], relay: Listening, client_files: TlsFiles
) -> None:
    value = MARK + os.urandom(300_000)
    with connect(relay.address, token=nodes[0].token, tls=client_files) as client:
        assert client.put("remote", value).status is PutStatus.STORED
        assert client.get("remote") == value
        assert client.get_many(["remote", "missing"]) == [value, None]
    assert len(relay.heard) > 2 * len(value)
    assert MARK not in relay.heard


def test_what_one_node_has_another_reads(nodes: list[StoreProcess]) -> None:
    value = os.urandom(3 << 20)
    with connect(f"unix:{nodes[0].socket}") as writer, connect(f"unix:{nodes[1].socket}") as reader:
        assert writer.put("shared", value).status is PutStatus.STORED
        wait_until(lambda: reader.get("shared") == value)


def test_who_does_not_fit_is_told_why(
    nodes: list[StoreProcess], client_files: TlsFiles, tmp_path: Path
) -> None:
    address, token = f"tcp://{nodes[0].listen}", nodes[0].token
    foreign = Authority(tmp_path / "other").issue("foreign")
    refused: list[tuple[TlsFiles | None, str, str]] = [
        (None, token, "takes TLS only: give tls_cert"),
        (foreign, token, f"certificate of the store at {address} does not pass with tls_ca"),
        (client_files, "another-token-entirely", "token"),
    ]
    for files, tried, told in refused:
        with pytest.raises(AccessDenied, match=told):
            connect(address, token=tried, tls=files, timeout_s=SECONDS)
    with pytest.raises(InvalidRequest, match="tls is given with unix:"):
        connect(f"unix:{nodes[0].socket}", tls=client_files)


def test_a_plain_store_is_named_by_a_client_and_by_a_node_that_speak_tls(
    nodes: list[StoreProcess], store_daemon: StartStore, client_files: TlsFiles
) -> None:
    """And the plain node says of the other ones what they take."""
    cluster = nodes[0].token_file.parent / "cluster"
    plain = store_daemon(
        *("--node-id", "plain", "--token-file", str(nodes[0].token_file)),
        *("--cluster", f"file:{cluster}"),
    )
    plain.token_file = nodes[0].token_file
    with pytest.raises(AccessDenied, match="speaks no TLS: start that store with --tls-cert"):
        connect(f"tcp://{plain.listen}", token=plain.token, tls=client_files, timeout_s=SECONDS)
    wait_until(lambda: "detail=store plain" in nodes[0].log.read_text(), 30)
    assert "speaks no TLS" in nodes[0].log.read_text()
    wait_until(lambda: "takes TLS only" in plain.log.read_text(), 30)


def test_a_store_that_nobody_could_trust_does_not_start(
    store_daemon: StartStore, authority: Authority
) -> None:
    with pytest.raises(AssertionError, match=r"commonName=old.*has expired; renew it"):
        store_daemon(*flags(authority.issue_expired("old")))


def test_tls_takes_all_three_files_and_a_port(tmp_path: Path) -> None:
    cert = tmp_path / "cert.pem"
    with pytest.raises(InvalidRequest, match=r"tls_key and tls_ca missing beside tls_cert"):
        StoreSettings(data_dir=tmp_path, tls_cert=cert)
    with pytest.raises(InvalidRequest, match=r"tls_cert is .*without effect as transports is shm"):
        StoreSettings(
            data_dir=tmp_path, tls_cert=cert, tls_key=cert, tls_ca=cert, transports=("shm",)
        )


def test_a_client_returns_by_itself_to_a_store_that_was_restarted(
    store_daemon: StartStore, authority: Authority, client_files: TlsFiles
) -> None:
    store = store_daemon(*flags(authority.issue("alone")))
    store.keep_port()
    with connect(f"tcp://{store.listen}", token=store.token, tls=client_files) as client:
        client.put("a", b"value")
        store.kill()
        with pytest.raises(StoreUnavailable):
            client.get("a", timeout_s=0.1)
        store.start()
        assert client.put("a", b"again", timeout_s=SECONDS).status is PutStatus.STORED

"""A store under attack, and what must hold of it afterwards."""

from __future__ import annotations

import contextlib
import random
import selectors
import socket
from collections.abc import Iterator, Sequence

from moontide.kvstore import StoreClient, View, connect

from ..kvstore.client.helpers import own_memory
from ..kvstore.daemon.admin import Admin
from ..store_process import StoreProcess
from ..waiting import wait_until

MEMORY_BYTES = 64 << 20
ANSWER_SECONDS = 10.0
REST_SECONDS = 20.0


def send_and_hang_up(sock: socket.socket, chunks: Sequence[bytes]) -> None:
    """Sends what is taken, reads what comes, and closes once the other side has nothing to say."""
    with sock, contextlib.suppress(OSError):
        sock.settimeout(ANSWER_SECONDS)
        for chunk in chunks:
            sock.sendall(chunk)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(1 << 16):
            pass


def send_interleaved(
    rng: random.Random, socks: Sequence[socket.socket], streams: Sequence[bytes]
) -> None:
    """A piece of one, a piece of another; reads nothing in between but what there is. All hang
    up."""
    left = {sock: memoryview(stream) for sock, stream in zip(socks, streams, strict=True)}
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        for sock in socks:
            stack.enter_context(sock)
            sock.setblocking(False)
            selector.register(sock, selectors.EVENT_READ)
        while left:
            sock = rng.choice(list(left))
            try:
                sent = sock.send(left[sock][: rng.choice([1, 19, 20, 100, 5000])])
                left[sock] = left[sock][sent:]
            except BlockingIOError:
                pass
            except OSError:
                left[sock] = memoryview(b"")
            for ready, _ in selector.select(0):
                with contextlib.suppress(OSError):
                    ready.fileobj.recv(1 << 16)  # type: ignore[union-attr]  # a socket
            if not left[sock]:
                del left[sock]


class Bystander:
    """A client that does nothing wrong, and must not notice."""

    def __init__(self, client: StoreClient) -> None:
        self._client = client
        self._rng = random.Random(5)
        self._round = 0
        self._value = self._rng.randbytes(100_000)
        client.put("bystander", self._value)
        view = client.view("bystander")
        assert view is not None
        self._view: View = view

    def check(self) -> None:
        """What it holds is whole; what it puts is there, whoever cleared the store before."""
        assert self._view.data == self._value
        self._round += 1
        name, value = f"bystander/{self._round}", self._rng.randbytes(5000)
        assert self._client.put(name, value, if_exists="replace").status.name == "STORED"
        assert self._client.get(name) == value
        assert self._client.remove(name)

    def leave(self) -> None:
        self._view.release()


@contextlib.contextmanager
def under_attack(daemon: StoreProcess) -> Iterator[Bystander]:
    """Whatever happens within: the process lives and is as large as before, errors are none of its
    own, other clients go on, and nothing is left held."""
    admin = Admin(daemon.admin, daemon.token)
    with connect(f"unix:{daemon.socket}", timeout_s=ANSWER_SECONDS) as client:
        bystander = Bystander(client)
        memory = own_memory(daemon.pid)
        yield bystander
        bystander.check()
        bystander.leave()
        client.clear()
    assert daemon.is_running()
    wait_until(lambda: admin.stats()["connections"] == 0, seconds=REST_SECONDS)
    names = ("tickets", "pins", "in_flight", "fills", "quarantined")
    wait_until(lambda: not any(admin.stats()[name] for name in names), seconds=REST_SECONDS)
    admin.check_at_rest()
    assert admin.stats()["tiers"]["dram"]["used_bytes"] == 0  # runs, too, are over
    assert admin.stats()["internal_errors"] == 0
    _, found, traceback = daemon.log.read_text().partition("Traceback")
    assert not found, traceback[:4000]
    assert own_memory(daemon.pid) - memory < MEMORY_BYTES

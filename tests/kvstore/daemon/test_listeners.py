"""The unix socket: its mode, its path, and who was there before."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from moontide.kvstore.daemon import listeners
from moontide.kvstore.daemon.listeners import Acceptor, UnixListener, prepare_remote
from moontide.kvstore.errors import Conflict, InvalidRequest


@pytest.fixture
def short_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="mt-") as name:
        yield Path(name)


def test_owner_and_group_may_connect_nobody_else(short_dir: Path) -> None:
    with contextlib.closing(UnixListener(short_dir / "new" / "s")) as listener:
        assert stat.S_IMODE(listener.path.stat().st_mode) == 0o660
    assert not listener.path.exists()


def test_a_socket_left_behind_is_replaced_a_live_one_is_not(short_dir: Path) -> None:
    path = short_dir / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with contextlib.closing(UnixListener(path)) as listener:
        with pytest.raises(Conflict, match=f"another process listens on socket {path}"):
            UnixListener(path)
        assert path.stat().st_ino == listener.path.stat().st_ino


def test_a_file_in_the_way_is_left_alone(short_dir: Path) -> None:
    path = short_dir / "s"
    path.write_text("precious")
    with pytest.raises(InvalidRequest, match="is no socket"):
        UnixListener(path)
    assert path.read_text() == "precious"


def test_an_overlong_path_is_refused_with_both_numbers(short_dir: Path) -> None:
    path = short_dir / ("x" * 120)
    with pytest.raises(InvalidRequest, match=rf"{len(str(path))} bytes.* 107"):
        UnixListener(path)


def test_a_successors_socket_survives_the_predecessors_close(short_dir: Path) -> None:
    path = short_dir / "s"
    first = UnixListener(path)
    path.unlink()
    second = UnixListener(path)
    first.close()
    assert path.exists()
    second.close()


class Exhausted(socket.socket):
    """A listening socket that is out of descriptors once."""

    failures = 1

    def accept(self) -> tuple[socket.socket, object]:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def test_a_failed_accept_pauses_and_the_waiting_client_is_served_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listeners, "RETRY_SECONDS", 0.01)
    failures: list[None] = []

    async def run() -> None:
        served: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()
        with Exhausted() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            acceptor = Acceptor(
                listener,
                loop=asyncio.get_running_loop(),
                on_connection=lambda sock, _host: served.set_result(sock),
                on_failure=lambda: failures.append(None),
            )
            with socket.create_connection(listener.getsockname()):
                async with asyncio.timeout(5):
                    (await served).close()
            acceptor.close()

    asyncio.run(run())
    assert len(failures) == 1


def test_a_remote_client_that_is_gone_without_a_word_is_noticed_in_bounded_time() -> None:
    """The kernel asks for it."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        prepare_remote(accepted)
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        idle, interval, count = (
            accepted.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert idle + interval * count == listeners.LOST_SECONDS

"""A real etcd server for tests, on ports of this machine that nobody has."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .ports import free_port

START_SECONDS = 60.0


class EtcdProcess:
    """One server with its data in `folder`; it can be stopped, killed and started again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._client, self._peer = free_port(), free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self._client}"

    def start(self) -> None:
        """Returns when it answers."""
        here, peers = f"http://{self.endpoint}", f"http://127.0.0.1:{self._peer}"
        with (self._folder / "etcd.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *("etcd", "--name", "only", "--data-dir", str(self._folder / "etcd")),
                    *("--listen-client-urls", here, "--advertise-client-urls", here),
                    *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers),
                    *("--initial-cluster", f"only={peers}", "--unsafe-no-fsync"),
                ],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._is_serving():
            assert self._process.poll() is None, (self._folder / "etcd.log").read_text()[-2000:]
            assert time.monotonic() < deadline, "etcd did not start"
            time.sleep(0.02)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """SIGSTOP: connections stay open, nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def _is_serving(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._client)):
            return True
        return False


@contextlib.contextmanager
def etcd_process(folder: Path) -> Iterator[EtcdProcess]:
    """Skips the test where etcd is not installed (`make system-deps` does it)."""
    if shutil.which("etcd") is None:
        pytest.skip("etcd is not installed: make system-deps")
    process = EtcdProcess(folder)
    try:
        process.start()
        yield process
    finally:
        process.kill()

"""Real `moontide store` processes for tests."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from moontide.kvstore import connect
from moontide.kvstore.daemon.data_dir import read_state

from .ports import free_port
from .prepared_process import PreparedProcess

START_SECONDS = 90.0
"""For all that a start imports, on a slow and busy machine; one that fails is told at once."""
STOP_SECONDS = 15.0
DEFAULT_FLAGS = {"--dram": "64MiB", "--segment": "4MiB", "--max-entries": "65536"}

StartStore = Callable[..., "StoreProcess"]


class DaemonProcess(Protocol):
    """What a test needs of a process."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float) -> int: ...
    def send_signal(self, number: signal.Signals) -> None: ...
    def kill(self) -> None: ...


def shared_memory_names() -> set[str]:
    """Shared memory that outlives its processes. Directories in there are disks of other tests."""
    return {entry.name for entry in os.scandir("/dev/shm") if not entry.is_dir()}


class StoreProcess:
    """One daemon's place in the world and the process there now. `args` are flags beside those
    that place it."""

    def __init__(self, root: Path, socket: Path, args: tuple[str, ...]) -> None:
        self.data_dir = root / "data"
        self.socket = socket
        self.token_file = root / "token"
        self.log = root / "store.log"
        self.admin = ""  # URL
        self.listen: str | None = None  # HOST:PORT
        self.instance = ""
        self._args = args
        self._process: DaemonProcess | None = None

    def command(self, *more: str) -> list[str]:
        return [sys.executable, "-m", "moontide.kvstore.cli", *self.arguments(*more)]

    def arguments(self, *more: str) -> list[str]:
        """What follows `moontide`."""
        return [
            *("store", "--data-dir", str(self.data_dir), "--socket", str(self.socket)),
            *("--token-file", str(self.token_file), "--node-id", "node-a"),
            *("--listen", f"127.0.0.1:{free_port()}", "--admin", "127.0.0.1:0"),
            *self._args,
            *more,
        ]

    def launch(self) -> DaemonProcess:
        return PreparedProcess(self.arguments(), self.log)

    def start(self) -> None:
        """Returns when the daemon takes work."""
        self._process = self.launch()
        deadline = time.monotonic() + START_SECONDS
        while True:
            state = read_state(self.data_dir)
            if state is not None and state.pid == self._process.pid:
                break
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"the store did not start:\n{self.log.read_text()[-4000:]}")
            time.sleep(0.01)
        self.admin = f"http://{state.admin}"
        self.listen = state.listen
        self.instance = state.instance

    def keep_port(self) -> None:
        """From the next start on, clients find it where it listens now."""
        assert self.listen is not None
        self._args = (*self._args, "--listen", self.listen)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def token(self) -> str:
        return self.token_file.read_text().strip()

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """SIGSTOP: connections stay open, nothing is answered."""
        self.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """kill -9, and wait for the end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_SECONDS)

    def wait(self) -> int:
        """The exit status of a daemon told to stop."""
        assert self._process is not None
        return self._process.wait(STOP_SECONDS)

    def restart(self) -> None:
        """kill -9, then a new daemon on the same directory and socket (with other ports)."""
        self.kill()
        self.start()


def start_nodes(start: StartStore, parent: Path, count: int, *flags: str) -> list[StoreProcess]:
    """`count` stores of one cluster: node-a, node-b, …, with one token and one membership. Each can
    be asked by all others."""
    token = parent / "cluster-token"
    if not token.exists():
        token.touch(mode=0o600)
        token.write_text("cluster-token-of-the-tests")

    def start_node(number: int) -> StoreProcess:
        placed = ("--node-id", f"node-{chr(ord('a') + number)}", "--token-file", str(token))
        node = start(*placed, "--cluster", f"file:{parent / 'cluster'}", *flags)
        node.token_file = token
        return node

    with ThreadPoolExecutor(count) as pool:  # at once: most of a start is Python's own
        nodes = list(pool.map(start_node, range(count)))
    _await_linked(nodes)
    return nodes


def _await_linked(nodes: list[StoreProcess]) -> None:
    deadline = time.monotonic() + START_SECONDS
    for node in nodes:
        with connect(f"unix:{node.socket}") as client:
            while len(client.stats()["peers"]["up"]) < len(nodes) - 1:
                assert time.monotonic() < deadline, client.stats()["peers"]
                time.sleep(0.02)


@contextlib.contextmanager
def store_processes(parent: Path) -> Iterator[StartStore]:
    """`start(*flags)` starts a store of 64 MiB unless flags say otherwise, from any thread; all are
    killed at the end."""
    sockets = Path(tempfile.mkdtemp(prefix="mt-"))  # pytest's paths can be too long for a socket
    started: list[StoreProcess] = []
    numbers = itertools.count()

    def start(*flags: str) -> StoreProcess:
        number = next(numbers)
        root = parent / f"store-{number}"
        root.mkdir()
        args = [part for flag in DEFAULT_FLAGS.items() if flag[0] not in flags for part in flag]
        daemon = StoreProcess(root, sockets / f"{number}.sock", (*args, *flags))
        started.append(daemon)
        daemon.start()
        return daemon

    try:
        yield start
    finally:
        for daemon in started:
            daemon.kill()
        shutil.rmtree(sockets, ignore_errors=True)

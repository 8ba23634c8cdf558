"""The `moontide store` process that the benchmark's clients use."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...daemon.data_dir import read_state
from ...service import CommandFailed

READY_SECONDS = 60.0
STOP_SECONDS = 30.0
_POLL_SECONDS = 0.05
_SHOWN_LINES = 10


@dataclass(frozen=True, slots=True)
class Daemon:
    address: str  # of clients
    pid: int
    remote_address: str  # of clients on other nodes

    def settings(self) -> dict[str, str | int]:
        """What the driver of its clients begins with."""
        return {"address": self.address, "daemon_pid": self.pid}


@contextlib.contextmanager
def running_daemon(directory: Path, *flags: str) -> Iterator[Daemon]:
    """On a data directory below `directory`; ended on leaving. Raises CommandFailed."""
    data_dir, log = directory / "store", directory / "store.log"
    with tempfile.TemporaryDirectory(prefix="moontide-") as short:  # socket paths are limited
        command = [sys.executable, "-m", "moontide.kvstore.cli", "store", "--log-level", "warning"]
        command += ["--data-dir", str(data_dir), "--token-file", str(directory / "token")]
        command += ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
        command += ["--socket", str(Path(short) / "store.sock"), *flags]
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=output)
        try:
            yield _wait_for(process, data_dir, log)
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(STOP_SECONDS)


def _wait_for(process: subprocess.Popen[bytes], data_dir: Path, log: Path) -> Daemon:
    deadline = time.monotonic() + READY_SECONDS
    while True:
        state = read_state(data_dir)
        if state is not None and state.pid == process.pid:
            return Daemon(f"unix:{state.socket}", state.pid, f"tcp://{state.listen}")
        if process.poll() is not None or time.monotonic() > deadline:
            lines = log.read_text(errors="replace").splitlines()[-_SHOWN_LINES:]
            raise CommandFailed(
                f"the store ended or was not ready within {READY_SECONDS:g} s: {' | '.join(lines)}"
            )
        time.sleep(_POLL_SECONDS)

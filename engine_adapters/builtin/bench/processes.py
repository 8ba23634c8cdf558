"""The processes a benchmark runs against: those a user would start."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from moontide.kvstore.service import CommandFailed

_READY_SECONDS = 180.0
_STOP_SECONDS = 20.0  # `up` ends its children within 10
_POLL_SECONDS = 0.1
_SHOWN_LINES = 10


class _Url(msgspec.Struct):
    url: str


class _State(msgspec.Struct):
    """The part of `up`'s state file that is needed here."""

    conductor: _Url
    token_file: str
    workers: list[_Url]


@dataclass(frozen=True, slots=True)
class Served:
    """Where a running cluster answers."""

    conductor: str
    worker: str
    worker_without_store: str
    token: str


@contextlib.contextmanager
def serving(model: str, dram: str, directory: Path) -> Iterator[Served]:
    """`moontide up` with one worker, and beside it a worker that has no store. Raises CommandFailed
    with the log's end when one does not get ready."""
    state_file = directory / "state.json"
    up = ["up", "--both", "1", "--model", model, "--dram", dram, "--port-base", "0"]
    up += ["--state-file", str(state_file), "--token-file", str(directory / "token")]
    with _command(up, directory / "up.log") as cluster:
        cluster.wait_until(state_file.exists)
        state = msgspec.json.decode(state_file.read_bytes(), type=_State)
        plain = ["worker", "--id", "plain", "--listen", "127.0.0.1:0", "--store", "none"]
        plain += ["--model", model, "--token-file", state.token_file]
        with _command(plain, directory / "plain.log") as worker:
            worker.wait_until(lambda: worker.ready_url() is not None)
            yield Served(
                conductor=state.conductor.url,
                worker=state.workers[0].url,
                worker_without_store=worker.ready_url() or "",
                token=Path(state.token_file).read_text().strip(),
            )


@dataclass(frozen=True, slots=True)
class _Command:
    process: subprocess.Popen[bytes]
    log: Path

    def ready_url(self) -> str | None:
        """The address in a worker's `ready` line, once it is there."""
        words = self.log.read_text(errors="replace").split()
        urls = (word.removeprefix("url=") for word in words if word.startswith("url=http"))
        return next(urls, None)

    def wait_until(self, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        while not ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                lines = self.log.read_text(errors="replace").splitlines()[-_SHOWN_LINES:]
                raise CommandFailed(
                    f"{self.log.stem} ended or was not ready within {_READY_SECONDS:g} s; the end "
                    "of its log: " + " | ".join(lines)
                )
            time.sleep(_POLL_SECONDS)


@contextlib.contextmanager
def _command(arguments: list[str], log: Path) -> Iterator[_Command]:
    """A running `moontide` command; ended on leaving."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "moontide.kvstore.cli", *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
    try:
        yield _Command(process, log)
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_STOP_SECONDS)

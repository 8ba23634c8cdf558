"""The processes a benchmark runs against: those a user would start."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from moontide.kvstore.service import CommandFailed, die_with_parent

_READY_SECONDS = 180.0
_STOP_SECONDS = 50.0  # `up` ends its children in three steps of at most 15
_POLL_SECONDS = 0.1
_SHOWN_LINES = 10


class Url(msgspec.Struct, frozen=True):
    url: str


class Node(msgspec.Struct, frozen=True):
    id: str
    admin: str  # URL


class Worker(msgspec.Struct, frozen=True):
    id: str
    role: str
    node: str
    url: str
    pid: int


class Cluster(msgspec.Struct, frozen=True):
    """The part of `up`'s state file that is needed here."""

    conductor: Url
    token_file: str
    nodes: list[Node]
    workers: list[Worker]

    @property
    def token(self) -> str:
        return Path(self.token_file).read_text().strip()

    def worker(self, name: str) -> Worker:
        return next(worker for worker in self.workers if worker.id == name)


@contextlib.contextmanager
def running_cluster(
    directory: Path, *flags: str, environment: Mapping[str, str] | None = None
) -> Iterator[Cluster]:
    """`moontide up` with `flags`, ended on leaving. Raises CommandFailed with the log's end when it
    does not get ready."""
    state_file = directory / "state.json"
    up = ["up", "--port-base", "0", "--state-file", str(state_file)]
    up += ["--run-dir", str(directory / "run"), "--token-file", str(directory / "token"), *flags]
    with _command(up, directory / "up.log", environment or {}) as command:
        command.wait_until(state_file.exists)
        yield msgspec.json.decode(state_file.read_bytes(), type=Cluster)


@contextlib.contextmanager
def running_worker_without_store(directory: Path, model: str, token_file: str) -> Iterator[str]:
    """Its URL; the worker ends on leaving. Raises CommandFailed as above."""
    plain = ["worker", "--id", "plain", "--listen", "127.0.0.1:0", "--store", "none"]
    plain += ["--model", model, "--token-file", token_file]
    with _command(plain, directory / "plain.log", {}) as worker:
        worker.wait_until(lambda: worker.ready_url() is not None)
        yield worker.ready_url() or ""


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
def _command(
    arguments: Sequence[str], log: Path, environment: Mapping[str, str]
) -> Iterator[_Command]:
    """A running `moontide` command; ended on leaving."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "moontide.kvstore.cli", *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **environment},
            preexec_fn=die_with_parent(),
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

"""The processes a benchmark runs against: those a user would start."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

_READY_SECONDS = 180.0


class _Url(msgspec.Struct):
    url: str


class _State(msgspec.Struct):
    """The part of `up`'s state file that is needed here."""

    conductor: _Url
    token_file: str
    workers: list[_Url]


class Served(msgspec.Struct, frozen=True):
    """Where a running cluster answers."""

    conductor: str
    worker: str
    worker_without_store: str
    token: str


@contextlib.contextmanager
def serving(model: str, dram: str, directory: Path) -> Iterator[Served]:
    """`moontide up` with one worker, and beside it a worker that has no store. Raises RuntimeError
    with the log's end when one does not get ready."""
    state_file = directory / "state.json"
    up = ["up", "--both", "1", "--model", model, "--dram", dram, "--port-base", "0"]
    with _command([*up, "--state-file", str(state_file)], directory / "up.log") as process:
        state = msgspec.json.decode(_appears(state_file, process, "up.log"), type=_State)
        plain = ["worker", "--id", "plain", "--listen", "127.0.0.1:0", "--store", "none"]
        plain += ["--model", model, "--token-file", state.token_file]
        log = directory / "plain.log"
        with _command(plain, log) as worker:
            url = _ready_url(log, worker)
            token = Path(state.token_file).read_text().strip()
            yield Served(state.conductor.url, state.workers[0].url, url, token)


@contextlib.contextmanager
def _command(arguments: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "moontide.kvstore.cli", *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(5)


def _appears(path: Path, process: subprocess.Popen[bytes], log_name: str) -> bytes:
    _wait(path.exists, process, path.parent / log_name)
    return path.read_bytes()


def _ready_url(log: Path, process: subprocess.Popen[bytes]) -> str:
    """The address in the worker's `ready` line."""

    def urls() -> list[str]:
        words = log.read_text(errors="replace").split()
        return [word.removeprefix("url=") for word in words if word.startswith("url=http")]

    _wait(lambda: bool(urls()), process, log)
    return urls()[0]


def _wait(done: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while not done():
        if process.poll() is not None or time.monotonic() > deadline:
            end = "\n".join(log.read_text(errors="replace").splitlines()[-10:])
            raise RuntimeError(f"not ready after {_READY_SECONDS:g} s or ended; its log:\n{end}")
        time.sleep(0.1)

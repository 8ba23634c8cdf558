"""Real processes, real signals. The daemons are the real ones with a tiny random model."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from moontide.conductor.launch.ports import HOST, is_free

from ...waiting import wait_until

START_SECONDS = 90.0
ENDS_SECONDS = 20.0


@dataclass(slots=True)
class Up:
    """A `moontide up` started as a user would."""

    folder: Path
    process: subprocess.Popen[str]
    said: list[str] = field(default_factory=list)

    @property
    def state(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "state.json").read_text()))

    def pids(self) -> list[int]:
        state = self.state
        daemons = [state["conductor"], *state["nodes"], *state["workers"]]
        return [daemon["pid"] for daemon in daemons]


StartUp = Callable[..., Up]


@pytest.fixture
def start_up(tmp_path: Path, tiny_model_dir: Path) -> Iterator[StartUp]:
    started: list[Up] = []

    def start(*arguments: str) -> Up:
        with (tmp_path / "stderr").open("w") as stderr:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "moontide.kvstore.cli", "up"),
                    *("--model", str(tiny_model_dir), "--dram", "64MiB", "--port-base", "0"),
                    *("--token-file", str(tmp_path / "token"), "--run-dir", str(tmp_path / "run")),
                    *("--state-file", str(tmp_path / "state.json"), *arguments),
                ],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        up = Up(tmp_path, process)
        started.append(up)
        return up

    yield start
    for up in started:
        up.process.terminate()
        try:
            up.process.wait(ENDS_SECONDS)
        except subprocess.TimeoutExpired:
            up.process.kill()
            up.process.wait()
        assert up.process.stdout is not None
        up.process.stdout.close()


def await_ready(up: Up) -> None:
    assert up.process.stdout is not None
    for line in up.process.stdout:
        up.said.append(line)
        if line.startswith("ready"):
            return
    raise AssertionError((up.folder / "stderr").read_text())


def lives(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def ask(url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return dict(json.load(response))


def test_up_serves_replaces_a_killed_store_and_ends_with_a_signal(start_up: StartUp) -> None:
    up = start_up()
    await_ready(up)
    state = up.state
    assert set(state) == {"conductor", "token_file", "nodes", "workers"}
    assert state["workers"][0]["node"] == state["nodes"][0]["id"]
    completions = state["conductor"]["url"] + "/v1/completions"
    model = ask(state["conductor"]["url"] + "/v1/models")["data"][0]["id"]
    prompt = {"model": model, "prompt": "hello", "max_tokens": 3, "ignore_eos": True}
    assert ask(completions, prompt)["usage"]["completion_tokens"] == 3

    killed = state["nodes"][0]["pid"]
    os.kill(killed, signal.SIGKILL)
    assert ask(completions, prompt)["usage"]["completion_tokens"] == 3
    wait_until(lambda: up.state["nodes"][0]["pid"] != killed, 10)
    said = (up.folder / "stderr").read_text()
    assert "node-1 was killed by SIGKILL; starting it again in 0.1 s" in said

    pids = up.pids()
    assert all(lives(pid) for pid in pids)
    up.process.send_signal(signal.SIGINT)
    assert up.process.wait(ENDS_SECONDS) == 0
    assert not any(lives(pid) for pid in pids)
    assert not (up.folder / "state.json").exists()  # it says what runs


def test_children_end_when_up_is_killed(start_up: StartUp) -> None:
    up = start_up()
    await_ready(up)
    pids = up.pids()
    up.process.kill()
    up.process.wait()
    wait_until(lambda: not any(lives(pid) for pid in pids), ENDS_SECONDS)


def test_a_damaged_model_ends_up_with_the_workers_words(start_up: StartUp, tmp_path: Path) -> None:
    damaged = tmp_path / "model.gguf"
    damaged.write_bytes(b"no weights")
    up = start_up("--model", str(damaged))
    assert up.process.wait(START_SECONDS) == 1
    said = (up.folder / "stderr").read_text()
    assert "both-1 ended with status" in said
    assert str(damaged) in said
    assert "Traceback" not in said


def test_a_taken_port_ends_up_at_once_naming_it(start_up: StartUp) -> None:
    with socket.socket() as holder:
        holder.bind((HOST, 0))
        holder.listen(1)
        port = holder.getsockname()[1]
        assert not is_free(port)
        up = start_up("--port-base", str(port))
        assert up.process.wait(START_SECONDS) == 1
    said = (up.folder / "stderr").read_text()
    assert f"port {port} on {HOST} is taken" in said
    assert said.count("\n") == 1

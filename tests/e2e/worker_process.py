"""A worker in its own process, as a user starts it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from ..ports import free_port
from ..waiting import wait_until

START_SECONDS = 90.0
"""For all that a start imports, on a slow and busy machine; one that fails is told at once."""
BLOCK = 8
MOONTIDE = str(Path(sys.executable).with_name("moontide"))


def environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("MOONTIDE_")}
    return {**kept, "OMP_NUM_THREADS": "1"}


@dataclass
class Reply:
    status: int
    body: Any


@dataclass
class WorkerProcess:
    """`start`, talk, `stop`. As a context manager: started, and surely gone at the end."""

    folder: Path
    model: Path
    store: str = "none"
    flags: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    launcher: list[str] = field(default_factory=lambda: [MOONTIDE])
    process: subprocess.Popen[str] | None = None

    def command(self) -> list[str]:
        flags = {
            "id": "w0",
            "listen": f"127.0.0.1:{self.port}",
            "store": self.store,
            "model": str(self.model),
            "block-tokens": str(BLOCK),
            "hbm": "4MiB",
            "threads": "1",
            "token-file": str(self.folder / "token"),
            "cluster": f"file:{self.folder / 'cluster'}",
            **self.flags,
        }
        return [
            *self.launcher,
            "worker",
            *(part for k, v in flags.items() for part in (f"--{k}", v)),
        ]

    def start(self) -> None:
        self.process = subprocess.Popen(
            self.command(), env=environment(), stderr=subprocess.PIPE, text=True
        )
        deadline = time.monotonic() + START_SECONDS
        while not self._is_ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the worker did not start: {self.stop(signal.SIGKILL)}")
            time.sleep(0.05)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.process is not None:
            self.stop(signal.SIGKILL)

    def _is_ready(self) -> bool:
        with contextlib.suppress(OSError):
            return self.get("/readyz").status == 200
        return False

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Exit status and what it said on stderr."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> tuple[int, str]:
        """As `stop`, for a process that ends by itself."""
        assert self.process is not None
        _, said = self.process.communicate(timeout=20)
        status = self.process.returncode
        self.process = None
        return status, said

    def run_to_end(self) -> tuple[int, str]:
        """For starts that fail."""
        done = subprocess.run(
            self.command(),
            env=environment(),
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
            check=False,
        )
        return done.returncode, done.stderr

    @property
    def token(self) -> str:
        return (self.folder / "token").read_text().strip()

    def headers(self) -> dict[str, str]:
        with contextlib.suppress(OSError):
            return {
                "Authorization": f"Bearer {self.token}",
                "Content-Type": "application/json",
            }
        return {}

    def request(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            data = body if isinstance(body, bytes) else None if body is None else json.dumps(body)
            sent = self.headers() if headers is None else headers
            connection.request(method, path, data, sent)
            response = connection.getresponse()
            raw = response.read()
            is_json = response.headers.get_content_type() == "application/json"
            return Reply(response.status, json.loads(raw) if is_json else raw.decode())

    def get(self, path: str) -> Reply:
        return self.request("GET", path)

    def complete(self, prompt: str | list[int], max_tokens: int = 6, **fields: Any) -> Any:
        body = {"temperature": 0, "ignore_eos": True, "return_token_ids": True, **fields}
        reply = self.request(
            "POST", "/v1/completions", {"prompt": prompt, "max_tokens": max_tokens, **body}
        )
        assert reply.status == 200, reply
        return reply.body

    def stream(self, prompt: str | list[int], max_tokens: int = 6, **fields: Any) -> Iterator[Any]:
        """Chunks until [DONE]; closing the iterator hangs up."""
        body = {"temperature": 0, "ignore_eos": True, "stream": True, **fields}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            data = json.dumps({"prompt": prompt, "max_tokens": max_tokens, **body})
            connection.request("POST", "/v1/completions", data, self.headers())
            response = connection.getresponse()
            assert response.status == 200
            assert response.headers.get_content_type() == "text/event-stream"
            for line in response:
                if line.startswith(b"data: [DONE]"):
                    return
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])

    def stats(self) -> Any:
        return self.get("/v1/stats").body

    def wait_for(self, ready: Any, seconds: float = 5.0) -> None:
        wait_until(lambda: ready(self.stats()), seconds, self.stats)


def is_idle(stats: Any) -> bool:
    store = stats["store"]
    held = [stats[name] for name in ("running", "loading", "waiting", "pages_referenced")]
    held += [store[name] for name in ("outstanding_jobs", "pending_lookups", "tickets")]
    return not any(held) and store["staging_bytes"] == 0

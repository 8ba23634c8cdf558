"""A whole cluster in its own processes, as `moontide up` starts it."""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from moontide.kvstore.membership import StoreRecord, WorkerRecord, open_membership

START_SECONDS = 90.0
STOP_SECONDS = 45.0
REQUEST_SECONDS = 60.0
BLOCK = 8
WORKER_HEADER = "X-Moontide-Worker"
MOONTIDE = (sys.executable, "-m", "moontide.kvstore.cli")
SMALL = {
    "OMP_NUM_THREADS": "1",
    "MOONTIDE_WORKER_BLOCK_TOKENS": str(BLOCK),
    "MOONTIDE_WORKER_HBM": "8MiB",
    "MOONTIDE_WORKER_STAGING": "16MiB",
    "MOONTIDE_WORKER_THREADS": "1",
    "MOONTIDE_STORE_SEGMENT": "4MiB",
    "MOONTIDE_STORE_MAX_ENTRIES": "65536",
}
"""Settings that `up` does not set, for a tiny model."""


def prompt(length: int, seed: int = 0) -> list[int]:
    """Token ids of the tiny model, which has one a byte."""
    rng = random.Random(seed)
    return [rng.randrange(256) for _ in range(length)]


class Refused(Exception):
    """An honest error: a status of 400 or more, or an error event in a stream."""

    def __init__(self, status: int, body: Any, *, tokens: list[int] | None = None) -> None:
        super().__init__(f"{status}: {body}")
        self.status = status
        self.body = body
        self.tokens = tokens or []  # that came before it


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    tokens: list[int]
    finish_reason: str | None
    usage: Any
    evidence: Any
    worker: str

    @property
    def cached(self) -> dict[str, int]:
        """Cached prompt tokens by tier, those with any."""
        return {tier: n for tier, n in self.evidence["cached_by_tier"].items() if n}

    @property
    def shown(self) -> tuple[str, list[int], str | None]:
        """What its client was told, whatever way it was computed."""
        return self.text, self.tokens, self.finish_reason


class RunningCluster:
    """A cluster that runs: `folder` has its state file and its token. `check` raises AssertionError
    when something that should run has ended."""

    def __init__(self, folder: Path, cluster_dir: Path, check: Callable[[], None]) -> None:
        self.folder = folder
        self.check = check
        self._cluster_dir = cluster_dir

    def await_usable(self) -> None:
        """Until all know each other; then requests can be sent."""
        self.wait_until((self.folder / "state.json").exists, START_SECONDS)
        self.await_joined()

    # -- who is there -----------------------------------------------------------------

    @property
    def state(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "state.json").read_text()))

    @property
    def conductor(self) -> str:
        return str(self.state["conductor"]["url"])

    @functools.cached_property
    def model_name(self) -> str:
        return str(self.ask("GET", f"{self.conductor}/v1/models")["data"][0]["id"])

    @functools.cached_property
    def token(self) -> str:
        return (self.folder / "token").read_text().strip()

    def workers(self, role: str | None = None) -> list[str]:
        return [w["id"] for w in self.state["workers"] if role in (None, w["role"])]

    def metric(self, name: str) -> float:
        """Of the Conductor, without labels."""
        with self.exchange("GET", f"{self.conductor}/metrics", None, {}) as response:
            lines = response.read().decode().splitlines()
        [value] = [line.split()[1] for line in lines if line.split()[0] == name]
        return float(value)

    def pid(self, name: str) -> int:
        """Of a node, of a worker, or of `conductor`."""
        state = self.state
        members = {m["id"]: m["pid"] for m in [*state["nodes"], *state["workers"]]}
        return int({**members, "conductor": state["conductor"]["pid"]}[name])

    def signal(self, name: str, number: signal.Signals) -> None:
        os.kill(self.pid(name), number)

    def kill(self, name: str) -> None:
        """kill -9, and wait until `up` has started it again."""
        killed = self.pid(name)
        os.kill(killed, signal.SIGKILL)
        self.wait_until(lambda: self.pid(name) != killed, 15)

    def await_joined(self, seconds: float = 30.0) -> None:
        """Until workers are attached to their stores, stores are linked to each other, and the
        Conductor follows all of them."""
        self.wait_until(self._is_joined, seconds)

    def _is_joined(self) -> bool:
        state = self.state
        membership = open_membership(f"file:{self._cluster_dir}")
        records = [member.record for member in membership.members()]
        pids = {m["id"]: str(m["pid"]) for m in [*state["nodes"], *state["workers"]]}
        if {r.id: r.instance.split("/")[1] for r in records} != pids:
            return False
        stores = {r.id: r.instance for r in records if isinstance(r, StoreRecord)}
        workers = [r for r in records if isinstance(r, WorkerRecord)]
        known = self.ask("GET", f"{self.conductor}/v1/cluster")
        peers = [self.store_stats(node)["peers"] for node in stores]
        return (
            all(worker.store_instance == stores[worker.node] for worker in workers)
            and all(len(each["up"]) == len(stores) - 1 for each in peers)
            and {w["instance"] for w in known["workers"] if w["usable"]}
            == {worker.instance for worker in workers}
            and {s["instance"] for s in known["stores"] if s["events"] == "live"}
            == set(stores.values())
        )

    # -- requests ---------------------------------------------------------------------

    def ask(self, method: str, url: str, body: object = None) -> Any:
        """JSON of any service of the cluster, with its token. Raises Refused, OSError."""
        with self.exchange(method, url, body, {}) as response:
            return json.load(response)

    def complete(
        self, token_ids: list[int], max_tokens: int = 8, worker: str = "", **fields: Any
    ) -> Answer:
        """A streamed greedy answer of the Conductor. Raises Refused, OSError."""
        stream = Stream(self, token_ids, max_tokens, worker, fields)
        for _ in stream:
            pass
        return stream.answer()

    @contextlib.contextmanager
    def exchange(
        self, method: str, url: str, body: object, headers: dict[str, str]
    ) -> Iterator[http.client.HTTPResponse]:
        parts = urlsplit(url)
        assert parts.hostname
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=REQUEST_SECONDS)
        sent = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        with contextlib.closing(connection):
            payload = None if body is None else json.dumps(body)
            connection.request(method, parts.path, payload, {**sent, **headers})
            response = connection.getresponse()
            if response.status != 200:
                raise Refused(response.status, json.load(response))
            yield response

    # -- rest -------------------------------------------------------------------------

    def store_stats(self, node: str) -> Any:
        [admin] = [n["admin"] for n in self.state["nodes"] if n["id"] == node]
        return self.ask("GET", f"{admin}/v1/stats")

    def worker_stats(self, worker: str) -> Any:
        [url] = [w["url"] for w in self.state["workers"] if w["id"] == worker]
        return self.ask("GET", f"{url}/v1/stats")

    def empty_engine_caches(self) -> None:
        for worker in self.state["workers"]:
            self.ask("POST", f"{worker['url']}/v1/cache/clear", {})

    def empty_stores(self, *nodes: str) -> None:
        """Without names, all of them."""
        for node in self.state["nodes"]:
            if not nodes or node["id"] in nodes:
                self.ask("POST", f"{node['admin']}/v1/clear", {"nodes": "this"})

    def held(self) -> dict[str, Any]:
        """What is still in flight, pinned, reserved or quarantined anywhere; empty at rest."""
        found: dict[str, Any] = {}
        state = self.state
        for node in state["nodes"]:
            found |= _held_by_store(node["id"], self.store_stats(node["id"]))
        for worker in state["workers"]:
            found |= _held_by_worker(worker["id"], self.worker_stats(worker["id"]))
        cluster = self.ask("GET", f"{self.conductor}/v1/cluster")
        found["conductor.requests_in_flight"] = cluster["requests_in_flight"]
        for known in cluster["workers"]:
            found[f"conductor.{known['id']}.open_requests"] = known["open_requests"]
        return {name: value for name, value in found.items() if value}

    def await_flushed(self, seconds: float = 20.0) -> None:
        """Until all that lies in DRAM lies on NVMe too."""

        def unflushed() -> int:
            tiers = [self.store_stats(n["id"])["tiers"]["dram"] for n in self.state["nodes"]]
            return sum(dram["entries"] - dram["flushed"] for dram in tiers)

        self.wait_until(lambda: unflushed() == 0, seconds, lambda: f"{unflushed()} unflushed")

    def await_rest(self, seconds: float = 20.0) -> None:
        """Until nothing is held anywhere."""
        self.wait_until(lambda: not self.held(), seconds, lambda: str(self.held()))

    def wait_until(
        self,
        reached: Callable[[], bool],
        seconds: float,
        explain: Callable[[], str] | None = None,
    ) -> None:
        """Services that cannot be asked yet have not reached it."""
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(OSError, Refused, http.client.HTTPException):
                if reached():
                    return
            self.check()
            if time.monotonic() > deadline:
                raise AssertionError(explain() if explain else reached)
            time.sleep(0.05)


class ClusterProcess(RunningCluster):
    """`moontide up` with `arguments`, on the tiny model. As a context manager: started, and surely
    gone at the end."""

    def __init__(
        self,
        folder: Path,
        model: Path,
        arguments: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._sockets = Path(tempfile.mkdtemp(prefix="mt-"))  # pytest's paths can be too long
        super().__init__(folder, self._sockets / "cluster", self._check)
        self._process: subprocess.Popen[bytes] | None = None
        self._environment = {**clean_environment(), **SMALL, **(environment or {})}
        self._command = [
            *(*MOONTIDE, "up", "--port-base", "0", "--run-dir", str(self._sockets)),
            *("--model", str(model), "--dram", "64MiB"),
            *("--token-file", str(folder / "token")),
            *("--state-file", str(folder / "state.json"), *arguments),
        ]

    def __enter__(self) -> Self:
        with (self.folder / "up.log").open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=self._environment,
            )
        try:
            self.await_usable()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()  # its children get SIGTERM from the kernel
            self._process.wait()
        shutil.rmtree(self._sockets, ignore_errors=True)

    def _check(self) -> None:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError((self.folder / "up.log").read_text(errors="replace"))


def clean_environment() -> dict[str, str]:
    """Without settings of ours."""
    return {name: v for name, v in os.environ.items() if not name.startswith("MOONTIDE_")}


class Stream:
    """Tokens of a running answer as they come; `answer` once it has ended. Raises Refused, with the
    tokens before it, and OSError. `worker` decoded the first of them."""

    def __init__(
        self,
        cluster: RunningCluster,
        token_ids: list[int],
        max_tokens: int,
        worker: str = "",
        fields: Mapping[str, Any] | None = None,
    ) -> None:
        self.tokens: list[int] = []
        self._cluster = cluster
        self._headers = {WORKER_HEADER: worker} if worker else {}
        self._body = {
            "model": cluster.model_name,
            "prompt": token_ids,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "return_token_ids": True,
            "stream_options": {"include_usage": True},
            **(fields or {}),
        }
        self._texts: list[str] = []
        self._finish_reason: str | None = None
        self._usage: Any = None
        self._evidence: Any = None
        self.worker = ""

    def __iter__(self) -> Iterator[list[int]]:
        """Each chunk's tokens."""
        url = f"{self._cluster.conductor}/v1/completions"
        with self._cluster.exchange("POST", url, self._body, self._headers) as response:
            self.worker = response.headers.get(WORKER_HEADER, "")
            for line in response:
                data = line.removeprefix(b"data: ").strip()
                if data == b"[DONE]":
                    return
                if line.startswith(b"data: "):
                    yield self._take(json.loads(data))
        raise ConnectionError("the stream ended without [DONE]")

    def _take(self, chunk: Any) -> list[int]:
        if "error" in chunk:
            raise Refused(200, chunk, tokens=self.tokens)
        self._usage = chunk.get("usage") or self._usage
        self._evidence = chunk.get("moontide") or self._evidence
        came: list[int] = []
        for choice in chunk["choices"]:
            self._texts.append(choice["text"])
            came += choice.get("token_ids") or []
            self._finish_reason = choice["finish_reason"] or self._finish_reason
        self.tokens += came
        return came

    def answer(self) -> Answer:
        return Answer(
            "".join(self._texts),
            self.tokens,
            self._finish_reason,
            self._usage,
            self._evidence,
            self.worker,
        )


def _held_by_store(node: str, stats: Any) -> dict[str, Any]:
    found = {
        f"{node}.{name}": stats[name]
        for name in ("in_flight", "fills", "pins", "tickets", "quarantined")
    }
    for tier, counts in stats["tiers"].items():
        for name in ("pinned_bytes", "reserved_bytes", "quarantined_bytes"):
            found[f"{node}.{tier}.{name}"] = counts[name]
    return found


def _held_by_worker(worker: str, stats: Any) -> dict[str, Any]:
    found = {f"{worker}.{name}": stats[name] for name in ("running", "waiting", "pages_referenced")}
    for name in ("outstanding_jobs", "pending_lookups", "tickets", "staging_bytes"):
        found[f"{worker}.store.{name}"] = stats["store"][name]
    return found

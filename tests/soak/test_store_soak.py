"""Eight client processes do all that clients can do in stores three times too small, and every few
seconds one of them, or a daemon, is killed or stands still. At the end nothing is held, the
accounts agree, memory and descriptors are back, the limits held all the time, and no wrong byte was
seen."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from moontide.kvstore import PutStatus, connect

from ..kvstore.daemon.admin import Admin
from ..store_process import StartStore, StoreProcess, shared_memory_names, start_nodes
from ..waiting import wait_until
from .churner import LARGEST, NUM_CLIENTS

CHURNER = Path(__file__).with_name("churner.py")
DRAM_BYTES, NVME_BYTES = 96 << 20, 256 << 20
FLAGS = (
    *("--dram", str(DRAM_BYTES), "--segment", str(LARGEST), "--max-entries", "4096"),
    *("--nvme", str(NVME_BYTES), "--nvme-region", "8MiB"),
)
SOAK_SECONDS = "MOONTIDE_SOAK_SECONDS"
TOLERANCE = 1.05
MEMORY_BYTES = 48 << 20
"""How much more a daemon may hold than when it started: what its caches grow to."""
BEGIN_SECONDS = 60.0
STOP_SECONDS = 60.0
REST_SECONDS = 30.0
LOOK_SECONDS = 0.5
PAUSE_SECONDS = 3.0
"""A store that is stopped for so long keeps its lease."""


class Churn:
    """The client processes, their lives, and what they told. They share the daemons evenly."""

    def __init__(self, daemons: Sequence[StoreProcess], folder: Path, seed: int) -> None:
        self._daemons = daemons
        self._folder = folder
        self._seed = seed
        self._lives = [0] * NUM_CLIENTS
        self._processes = [self._start(number) for number in range(NUM_CLIENTS)]

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        """Every fourth over TCP."""
        world = "alone" if len(self._daemons) == 1 else "cluster"
        daemon, local = self._daemons[number % len(self._daemons)], number % 4 != 3
        address = f"unix:{daemon.socket}" if local else f"tcp://{daemon.listen}"
        life, token = self._lives[number], "" if local else daemon.token
        seed = f"{self._seed * 10_000 + number * 1000 + life}"
        with self._output(number).open("ab") as output:
            return subprocess.Popen(
                [sys.executable, str(CHURNER), world, address, token, str(number), str(life), seed],
                stdout=output,
                stderr=output,
            )

    def _output(self, number: int) -> Path:
        return self._folder / f"churner-{number}.out"

    def kill(self, number: int) -> None:
        self._processes[number].kill()
        self._processes[number].wait()
        self._lives[number] += 1
        self._processes[number] = self._start(number)

    def check_alive(self) -> None:
        for number, process in enumerate(self._processes):
            assert process.poll() is None, self._output(number).read_text()[-3000:]

    def await_told(self, what: str) -> None:
        """Of each, in its present life."""
        for number, life in enumerate(self._lives):
            line = json.dumps({what: life})
            wait_until(lambda: line in self._output(number).read_text(), seconds=BEGIN_SECONDS)  # noqa: B023 - called at once

    def stop(self) -> None:
        self.await_told("hit")
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            assert process.wait(STOP_SECONDS) == 0

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def told(self) -> list[dict[str, Any]]:
        """Whatever is no JSON is a traceback."""
        lines = [
            line
            for number in range(NUM_CLIENTS)
            for line in self._output(number).read_text().splitlines()
        ]
        strange = [line for line in lines if not line.startswith("{")]
        assert not strange, "\n".join(strange[-40:])
        return [json.loads(line) for line in lines]


class Watch:
    """A daemon from outside, one beside `num_peers`: its limits, its accounts, what it holds."""

    def __init__(self, daemon: StoreProcess, num_peers: int) -> None:
        self._daemon = daemon
        self._num_peers = num_peers
        self.note_start()

    @property
    def admin(self) -> Admin:
        return Admin(self._daemon.admin, self._daemon.token)

    def note_start(self) -> None:
        """Once its peers have connected."""
        wait_until(lambda: self.admin.stats()["connections"] >= self._num_peers, BEGIN_SECONDS)
        self.memory_at_start = self.memory()
        self.descriptors_at_start = self.descriptors()

    def memory(self) -> int:
        """Proportional, without the pool and the header slots."""
        pss = _smaps(self._daemon.pid)
        return pss["Pss"] - pss["Pss_Shmem"]

    def descriptors(self) -> int:
        """Without the region files, of which there are more or fewer."""
        folder = Path(f"/proc/{self._daemon.pid}/fd")
        targets = [os.readlink(entry) for entry in folder.iterdir() if entry.is_symlink()]
        return sum(not target.startswith(str(self._daemon.data_dir)) for target in targets)

    @property
    def name(self) -> str:
        return self._daemon.data_dir.parent.name

    def restart(self, how: signal.Signals) -> None:
        """SIGTERM, and it ends well; or SIGKILL."""
        if how is signal.SIGTERM:
            self._daemon.signal(how)
            assert self._daemon.wait() == 0
        self._daemon.restart()
        self.note_start()

    def pause(self) -> None:
        self._daemon.signal(signal.SIGSTOP)
        time.sleep(PAUSE_SECONDS)
        self._daemon.signal(signal.SIGCONT)

    def check_alive(self) -> None:
        assert self._daemon.is_running(), self._daemon.log.read_text()[-3000:]

    def check_limits(self) -> None:
        used = sum(_disk_bytes(path) for path in (self._daemon.data_dir / "nvme").rglob("*"))
        assert used <= NVME_BYTES * TOLERANCE, f"{used} bytes on disk"
        pool = _smaps(self._daemon.pid)["Pss_Shmem"]
        assert pool <= DRAM_BYTES * TOLERANCE, f"{pool} bytes of pool"

    def check_accounts(self) -> None:
        assert self.admin.post("/v1/audit")["differences"] == []

    def held(self) -> dict[str, int]:
        stats, report = self.admin.stats(), self.admin.post("/v1/audit")
        held = {name: stats[name] for name in ("pins", "tickets", "connections", "fills")}
        held["connections"] -= self._num_peers
        held |= {name: report[name] for name in ("in_flight", "quarantined")}
        held["reserved_bytes"] = stats["tiers"]["dram"]["reserved_bytes"]  # runs, too
        return {name: count for name, count in held.items() if count}

    def check_usable(self) -> None:
        """R14: the largest entry finds room, and all can be given back."""
        with connect(f"unix:{self._daemon.socket}", timeout_s=REST_SECONDS) as client:
            assert client.put("largest", bytes(LARGEST)).status is PutStatus.STORED
            client.clear()
            assert client.stats()["tiers"]["dram"]["used_bytes"] == 0

    def check_at_rest(self) -> None:
        wait_until(lambda: not self.held(), REST_SECONDS, told=self.held)
        self.check_accounts()
        stats = self.admin.stats()
        assert stats["internal_errors"] == 0
        assert stats["tiers"]["dram"]["corrupt"] == stats["tiers"]["nvme"]["corrupt"] == 0
        wait_until(lambda: self.descriptors() <= self.descriptors_at_start, seconds=REST_SECONDS)
        assert self.memory() - self.memory_at_start < MEMORY_BYTES


def _smaps(pid: int) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    fields = (line.split() for line in lines)
    return {name.rstrip(":"): int(value) * 1024 for name, value, _ in fields}


def _disk_bytes(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except FileNotFoundError:
        return 0


def soak(
    daemons: Sequence[StoreProcess], folder: Path, *, seconds: float, kill_seconds: float, seed: int
) -> None:
    print(f"seed {seed}, {seconds:g} s, a kill every {kill_seconds:g} s")
    rng = random.Random(seed)
    for daemon in daemons:
        daemon.keep_port()
    watches = [Watch(daemon, num_peers=len(daemons) - 1) for daemon in daemons]
    churn = Churn(daemons, folder, seed)
    try:
        churn.await_told("begun")
        end = time.monotonic() + seconds
        next_kill = time.monotonic() + kill_seconds
        while time.monotonic() < end:
            time.sleep(LOOK_SECONDS)
            churn.check_alive()
            for watch in watches:
                watch.check_alive()
                watch.check_limits()
                watch.check_accounts()
            if time.monotonic() > next_kill:
                next_kill += kill_seconds
                kill_someone(rng, rng.choice(watches), churn)
        churn.stop()
    finally:
        churn.end()
    check_told(churn)
    for watch in watches:
        watch.check_at_rest()
    for watch in watches:
        watch.check_usable()
        watch.check_at_rest()


def kill_someone(rng: random.Random, watch: Watch, churn: Churn) -> None:
    what = rng.choices(["client", "daemon", "stop", "pause"], [6, 3, 1, 1])[0]
    number = rng.randrange(NUM_CLIENTS)
    print(f"kill: {what} {number if what == 'client' else watch.name}")
    if what == "client":
        churn.kill(number)
    elif what == "pause":
        watch.pause()
    else:
        watch.restart(signal.SIGTERM if what == "stop" else signal.SIGKILL)


def check_told(churn: Churn) -> None:
    told = churn.told()
    problems = [line for line in told if "problem" in line]
    kinds = Counter(line["problem"] for line in problems)
    assert problems == [], f"{dict(kinds)}: {problems[:5]}"
    reports = [line for line in told if "operations" in line]
    assert len(reports) == NUM_CLIENTS
    assert not any(report["corrupt"] for report in reports)
    assert all(report["hits"] for report in reports)
    print({name: sum(report[name] for report in reports) for name in reports[0]})


@contextlib.contextmanager
def no_shared_memory_left() -> Iterator[None]:
    """Nothing in /dev/shm afterwards that was not there before."""
    before = shared_memory_names()
    yield
    assert shared_memory_names() == before


def soak_seconds() -> float:
    return float(os.environ.get(SOAK_SECONDS, "600"))


def new_seed() -> int:
    return random.SystemRandom().randrange(1 << 16)


def test_r13_a_short_churn_with_kills_leaves_nothing(
    store_daemon: StartStore, tmp_path: Path
) -> None:
    with no_shared_memory_left():
        soak([store_daemon(*FLAGS)], tmp_path, seconds=9, kill_seconds=2.2, seed=13)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_r13_ten_minutes_of_churn_with_kills_leave_nothing(
    store_daemon: StartStore, tmp_path: Path
) -> None:
    with no_shared_memory_left():
        daemon = store_daemon(*FLAGS)
        soak([daemon], tmp_path, seconds=soak_seconds(), kill_seconds=20, seed=new_seed())


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_r13_churn_at_two_nodes_of_a_cluster_with_kills_leaves_nothing(
    store_daemon: StartStore, tmp_path: Path
) -> None:
    """Keys are replaced and removed at one and read at both; blocks come from whoever has them."""
    with no_shared_memory_left():
        daemons = start_nodes(store_daemon, tmp_path, 2, *FLAGS)
        soak(daemons, tmp_path, seconds=soak_seconds(), kill_seconds=20, seed=new_seed())

"""A worker and a store daemon as processes: reuse over HTTP, and the daemon's death under load."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from moontide.kvstore import connect
from moontide.kvstore.membership import WorkerRecord, open_membership

from ..waiting import Lateness, wait_until
from .worker_process import BLOCK, WorkerProcess, is_idle

StartStore = Callable[..., Any]


def prompt(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(256) for _ in range(length)]


def cached(answer: Any) -> dict[str, int]:
    by_tier: dict[str, int] = answer["moontide"]["cached_by_tier"]
    return by_tier


@pytest.fixture
def worker(
    store_daemon: StartStore, tmp_path: Path, tiny_model_dir: Path
) -> Iterator[tuple[WorkerProcess, Any]]:
    store = store_daemon()
    address, flags = f"unix:{store.socket}", {"load": "always"}  # however long that takes here
    with WorkerProcess(tmp_path, tiny_model_dir, store=address, flags=flags) as worker:
        yield worker, store
        status, said = worker.stop()
    assert status == 0, said
    assert "Traceback" not in said


def test_a_prompt_comes_from_dram_after_the_engine_forgot_it(
    worker: tuple[WorkerProcess, Any],
) -> None:
    process, _ = worker
    cold = process.complete(prompt(100))
    process.wait_for(is_idle)
    assert process.request("POST", "/v1/cache/clear").body == {"blocks": 13}
    warm = process.complete(prompt(100))
    assert warm["choices"] == cold["choices"]
    assert cached(warm) == {"hbm": 0, "dram": 96, "nvme": 0}
    evidence = warm["moontide"]
    assert evidence["bytes_by_tier"]["dram"] == 12 * 4 * BLOCK * 2 * 2 * 16 * 4
    assert evidence["first_layer_at"] <= evidence["last_layer_at"] <= evidence["prefill_end_at"]
    process.wait_for(is_idle)


def test_a_daemon_killed_under_load_costs_misses_only(worker: tuple[WorkerProcess, Any]) -> None:
    process, store = worker
    expected = [process.complete(prompt(60, seed), 4)["choices"] for seed in range(6)]
    stop, failures, served = threading.Event(), [], []

    def load(seed: int) -> None:
        while not stop.is_set():
            for number in range(seed, 6, 2):
                process.request("POST", "/v1/cache/clear")
                answer = process.complete(prompt(60, number), 4)
                served.append(time.monotonic())
                if answer["choices"] != expected[number]:
                    failures.append(answer)

    threads = [threading.Thread(target=load, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(2):
            store.restart()
            wait_until(lambda: hits(process), 10.0)
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert not failures
    assert served
    process.wait_for(is_idle)


def hits(process: WorkerProcess) -> bool:
    process.complete(prompt(80, 77), 1)
    process.request("POST", "/v1/cache/clear")
    return cached(process.complete(prompt(80, 77), 1))["dram"] > 0


def test_it_starts_without_a_daemon_and_finds_one_later(
    store_daemon: StartStore, tmp_path: Path, tiny_model_dir: Path
) -> None:
    store = store_daemon()
    store.kill()
    with WorkerProcess(tmp_path, tiny_model_dir, store=f"unix:{store.socket}") as worker:
        worker.complete(prompt(30))
        store.start()
        wait_until(lambda: hits(worker))
        membership = open_membership(f"file:{tmp_path / 'cluster'}")

        def told() -> str:
            (member,) = membership.members()
            assert isinstance(member.record, WorkerRecord)
            return member.record.store_instance

        wait_until(lambda: told() == store.instance)


def test_an_idle_worker_holds_nothing_in_the_store(worker: tuple[WorkerProcess, Any]) -> None:
    """After aborts in the middle of everything (R13, R17 over HTTP)."""
    process, store = worker
    rng = random.Random(3)
    for number in range(12):
        stream = process.stream(prompt(300, number % 3), 100)
        if rng.random() < 0.5:
            next(stream)
        stream.close()  # type: ignore[attr-defined]  # a generator
        if number % 4 == 3:
            process.request("POST", "/v1/cache/clear")
    process.wait_for(is_idle)
    with connect(f"unix:{store.socket}") as client:
        held = ("pins", "in_flight", "tickets")
        wait_until(lambda: not any(client.stats()[name] for name in held), 5.0, client.stats)


def test_r21_a_stopped_daemon_delays_a_few_requests_a_little(
    worker: tuple[WorkerProcess, Any],
) -> None:
    process, store = worker
    process.complete(prompt(80))
    process.wait_for(is_idle)
    calls = []
    with store.stopped(), Lateness() as machine:
        for seed in range(1, 13):
            started = time.monotonic()
            process.complete(prompt(20, seed), 1)
            calls.append((started, time.monotonic()))
    waits = sorted(end - begin - machine.between(begin, end) for begin, end in calls)
    assert waits[-1] < 5
    assert waits[len(waits) // 2] < 0.2
    wait_until(lambda: hits(process))

"""Deaths and stops in a cluster under load."""

from __future__ import annotations

import contextlib
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..cluster_process import ClusterProcess, RunningCluster
from .rounds import LOST, OUTPUT_TOKENS, PATIENT_CONDUCTOR, Fault, Load, run_round

ROUNDS = 10


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path
) -> Iterator[ClusterProcess]:
    with started(tmp_path_factory.mktemp("cluster"), tiny_model_dir) as cluster:
        yield cluster


@pytest.fixture
def fresh_cluster(tmp_path: Path, tiny_model_dir: Path) -> Iterator[ClusterProcess]:
    with started(tmp_path, tiny_model_dir) as cluster:
        yield cluster


def started(folder: Path, model: Path) -> ClusterProcess:
    arguments = ("--nodes", "2", "--prefill", "1", "--decode", "2", "--nvme", "64MiB")
    return ClusterProcess(folder, model, arguments, PATIENT_CONDUCTOR)


@contextlib.contextmanager
def killed_decode_worker(cluster: RunningCluster, load: Load, rng: random.Random) -> Iterator[None]:
    """In the middle of an answer: it goes on elsewhere."""
    resumes = cluster.metric("moontide_conductor_resumes_total")
    cluster.kill(rng.choice(load.decoding_workers()))
    yield
    assert cluster.metric("moontide_conductor_resumes_total") > resumes


@contextlib.contextmanager
def stopped_prefill_worker(
    cluster: RunningCluster, load: Load, rng: random.Random
) -> Iterator[None]:
    [worker] = cluster.workers("prefill")
    cluster.signal(worker, signal.SIGSTOP)
    try:
        yield
    finally:
        cluster.signal(worker, signal.SIGCONT)


@contextlib.contextmanager
def killed_store(cluster: RunningCluster, load: Load, rng: random.Random) -> Iterator[None]:
    """Of either node: one has the prefill worker, both have a decode worker."""
    cluster.kill(rng.choice(["node-1", "node-2"]))
    yield


FAULTS = {
    "decode_worker_killed": Fault(killed_decode_worker, range(1, OUTPUT_TOKENS // 5)),
    "prefill_worker_stopped": Fault(stopped_prefill_worker, range(2), LOST),
    "store_killed": Fault(killed_store, range(OUTPUT_TOKENS)),
}
faults = pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)


@faults
def test_one_round(cluster: ClusterProcess, fault: Fault) -> None:
    run_round(cluster, fault, random.Random(1))


@pytest.mark.soak
@pytest.mark.parametrize("number", range(ROUNDS))
@faults
def test_ten_rounds(fresh_cluster: ClusterProcess, fault: Fault, number: int) -> None:
    run_round(fresh_cluster, fault, random.Random(number))

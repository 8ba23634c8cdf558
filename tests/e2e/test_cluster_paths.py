"""One prompt over every path its KV can take through two nodes; the text is that of a cold run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ..cluster_process import BLOCK, Answer, ClusterProcess, prompt

FULL = 200  # the longest prefix of full blocks
TAIL = 3
OUTPUT = 40
HERE, THERE = "prefill-1", "decode-1"  # by name they do all of a request
KV_BYTES = 4 * 2 * 2 * 16 * 4  # of a token: layers, KV heads, K and V, head dim, float32
UNHURRIED = {
    "MOONTIDE_WORKER_LOAD": "always",
    "MOONTIDE_WORKER_LOOKUP_SECONDS": "30",
    "MOONTIDE_WORKER_LOAD_SECONDS": "30",
}
"""Which way KV comes is told here, not whether this machine has time for it."""


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path
) -> Iterator[ClusterProcess]:
    folder = tmp_path_factory.mktemp("cluster")
    arguments = ("--nodes", "2", "--prefill", "1", "--decode", "1", "--nvme", "64MiB")
    with ClusterProcess(folder, tiny_model_dir, arguments, UNHURRIED) as cluster:
        yield cluster


def ask(cluster: ClusterProcess, seed: int, worker: str = "") -> Answer:
    """A prompt that does not end on a block border."""
    answer = cluster.complete(prompt(FULL + TAIL, seed), OUTPUT, worker=worker)
    cluster.await_rest()
    return answer


def moved(answer: Answer) -> dict[str, int]:
    """Loaded bytes by the way they came, where there are any."""
    ways: dict[str, int] = answer.evidence["bytes_by_transport"]
    return {way: num_bytes for way, num_bytes in ways.items() if num_bytes}


def test_r6_from_the_engine_and_from_dram(cluster: ClusterProcess) -> None:
    cold = ask(cluster, 1, HERE)
    assert cold.cached == {}
    hbm = ask(cluster, 1, HERE)
    assert (hbm.shown, hbm.cached) == (cold.shown, {"hbm": FULL})
    cluster.empty_engine_caches()
    dram = ask(cluster, 1, HERE)
    assert (dram.shown, dram.cached) == (cold.shown, {"dram": FULL})
    assert moved(dram) == {"shm": FULL * KV_BYTES}


def known_at_node_2(cluster: ClusterProcess) -> int:
    """Blocks of its peer."""
    known: int = cluster.store_stats("node-2")["peers"]["indexed_blocks"]
    return known


def test_r6_from_the_other_node(cluster: ClusterProcess) -> None:
    known = known_at_node_2(cluster)
    cold = ask(cluster, 2, HERE)
    cluster.wait_until(lambda: known_at_node_2(cluster) >= known + FULL // BLOCK, seconds=20.0)
    before = cluster.store_stats("node-1")["transports"]["tcp"]
    remote = ask(cluster, 2, THERE)
    assert (remote.shown, remote.cached) == (cold.shown, {"dram": FULL})
    assert moved(remote) == {"tcp": FULL * KV_BYTES}
    after = cluster.store_stats("node-1")["transports"]["tcp"]
    assert after["bytes_out"] - before["bytes_out"] >= FULL * KV_BYTES
    cluster.empty_engine_caches()
    kept = ask(cluster, 2, THERE)
    assert moved(kept) == {"shm": FULL * KV_BYTES}
    assert kept.shown == cold.shown


def test_r6_from_nvme_after_the_store_was_killed(cluster: ClusterProcess) -> None:
    cold = ask(cluster, 5, HERE)
    cluster.await_flushed()
    cluster.kill("node-1")
    cluster.await_joined()
    cluster.empty_engine_caches()
    nvme = ask(cluster, 5, HERE)
    assert (nvme.shown, nvme.cached) == (cold.shown, {"nvme": FULL})
    assert moved(nvme) == {"file": FULL * KV_BYTES}
    cluster.empty_engine_caches()
    promoted = ask(cluster, 5, HERE)
    assert (promoted.shown, promoted.cached) == (cold.shown, {"dram": FULL})


def test_r6_handed_over_while_it_is_computed(cluster: ClusterProcess) -> None:
    cold = ask(cluster, 3, HERE)
    cluster.empty_engine_caches()
    cluster.empty_stores()
    before = cluster.store_stats("node-1")["transports"]["tcp"]
    split = ask(cluster, 3)
    assert split.shown == cold.shown
    assert split.usage == cold.usage
    evidence = split.evidence
    assert (evidence["prefill_worker"], evidence["decode_worker"]) == (HERE, THERE)
    assert moved(split)["tcp"] >= FULL * KV_BYTES
    assert not evidence["recomputed"]
    after = cluster.store_stats("node-1")["transports"]["tcp"]
    assert after["bytes_out"] - before["bytes_out"] >= (FULL + TAIL) * KV_BYTES


def test_r6_the_turn_after_a_hand_off_finds_prompt_and_answer(cluster: ClusterProcess) -> None:
    first = ask(cluster, 4)
    longer = prompt(FULL + TAIL, 4) + first.tokens + prompt(5, 99)
    cluster.empty_engine_caches()
    warm = cluster.complete(longer, OUTPUT, worker=THERE)
    assert warm.cached == {"dram": (FULL + TAIL + OUTPUT - 1) // 8 * 8}
    cluster.empty_engine_caches()
    cluster.empty_stores()
    cold = cluster.complete(longer, OUTPUT, worker=HERE)
    assert (warm.shown, cold.cached) == (cold.shown, {})
    cluster.await_rest()

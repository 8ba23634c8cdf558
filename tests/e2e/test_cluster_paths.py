"""One prompt over every path its KV can take through two nodes; the text is that of a cold run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ..cluster_process import ClusterProcess, prompt

PROMPT = prompt(203, seed=6)
FULL = 200
OUTPUT = 40


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path
) -> Iterator[ClusterProcess]:
    folder = tmp_path_factory.mktemp("cluster")
    arguments = ("--nodes", "2", "--both", "2")
    with ClusterProcess(folder, tiny_model_dir, arguments) as cluster:
        yield cluster


def test_r6_text_is_equal_over_every_path(cluster: ClusterProcess) -> None:
    cold = cluster.complete(PROMPT, OUTPUT, worker="both-1")
    assert cold.cached == {}
    hbm = cluster.complete(PROMPT, OUTPUT, worker="both-1")
    assert (hbm.shown, hbm.cached) == (cold.shown, {"hbm": FULL})
    cluster.empty_engine_caches()
    dram = cluster.complete(PROMPT, OUTPUT, worker="both-1")
    assert (dram.shown, dram.cached) == (cold.shown, {"dram": FULL})
    cluster.await_rest()

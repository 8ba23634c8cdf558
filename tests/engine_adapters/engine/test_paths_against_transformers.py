"""Every way KV reaches the engine, against transformers on the same random weights."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from moontide.engine_adapters.builtin.model import LoadedModel, load_model
from moontide.engine_adapters.builtin.worker.build import namespace_of
from moontide.kvstore import Namespace, StoreClient, connect

from ...kvstore.daemon.warm import admin_of, wait_flushed
from ...store_process import StartStore, StoreProcess, start_nodes
from ...waiting import wait_until
from ..model.tiny_models import Reference, save_random
from .conftest import BLOCK, Answer, MakeBench, NewKv
from .test_engine import prompt
from .two_nodes import TwoNodes

BORDERS = [n * BLOCK + d for n in (1, 2, 3, 5, 8, 9, 16) for d in (-1, 0, 1)]
NUM_TOKENS = 6
LOGITS_TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def reference(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path
) -> Reference:
    path = tmp_path_factory.mktemp(request.param)
    model = save_random(request.param, path)
    shutil.copy(tiny_model_dir / "tokenizer.json", path)
    return Reference(path, model)


@pytest.fixture(scope="module")
def model(reference: Reference) -> LoadedModel:
    """In place of the one the other engine tests share."""
    return load_model(str(reference.path))


@pytest.fixture(scope="module")
def namespace(model: LoadedModel) -> Namespace:
    return namespace_of(model, kv_dtype="float32", block_tokens=BLOCK)


def greedy(reference: Reference, token_ids: list[int]) -> tuple[list[int], list[torch.Tensor]]:
    """Output tokens, and the logits that each was chosen by."""
    known, logits = list(token_ids), []
    for _ in range(NUM_TOKENS):
        logits.append(reference.logits(known)[-1])
        known.append(int(logits[-1].argmax()))
    return known[len(token_ids) :], logits


def test_r06_cold_hbm_and_dram_agree_with_transformers(
    reference: Reference, make_bench: MakeBench, new_kv: NewKv
) -> None:
    bench = make_bench(new_kv())
    for length in BORDERS:
        token_ids = prompt(length, length)
        expected, logits = greedy(reference, token_ids)
        usable = (length - 1) // BLOCK * BLOCK
        for tier in ("cold", "hbm", "dram"):
            if tier == "dram":
                bench.settle()
                bench.clear()
            answer = bench.run(token_ids, NUM_TOKENS)
            assert answer.token_ids == expected, (length, tier)
            reused = {"hbm": answer.reuse.hbm_tokens, "dram": answer.reuse.dram_tokens}
            assert reused == {"hbm": 0, "dram": 0, **({tier: usable} if tier != "cold" else {})}
            torch.testing.assert_close(
                bench.decoder.last_of(length), logits[0], rtol=0, atol=LOGITS_TOLERANCE
            )
    bench.settle()


@pytest.fixture(scope="module")
def stores(
    module_store_daemon: StartStore, tmp_path_factory: pytest.TempPathFactory
) -> list[StoreProcess]:
    folder = tmp_path_factory.mktemp("cluster")
    sizes = ("--dram", "32MiB", "--segment", "4MiB", "--nvme", "64MiB")
    return start_nodes(module_store_daemon, folder, 2, *sizes)


@pytest.fixture
def clients(stores: list[StoreProcess]) -> Iterator[list[StoreClient]]:
    with connect(f"unix:{stores[0].socket}") as here, connect(f"unix:{stores[1].socket}") as there:
        for client, store in zip((here, there), stores, strict=True):
            client.clear()
            wait_until(partial(is_empty_disk, store))
        yield [here, there]


def is_empty_disk(store: StoreProcess) -> bool:
    return admin_of(store).stats()["tiers"]["nvme"]["flushed"] == 0


@pytest.mark.parametrize("length", [23, 40, 57])
def test_r06_nvme_remote_and_split_agree_with_transformers(
    reference: Reference,
    make_bench: MakeBench,
    namespace: Namespace,
    stores: list[StoreProcess],
    clients: list[StoreClient],
    length: int,
) -> None:
    """Each forced in turn: evidence names the way."""
    token_ids = prompt(length, length)
    expected, logits = greedy(reference, token_ids)
    benches = [make_bench(client.kv(namespace)) for client in clients]
    nodes = TwoNodes(benches[0], benches[1], stores[0])
    usable = (length - 1) // BLOCK * BLOCK

    def check(path: str, answer: Answer, cached: int, way: str) -> None:
        assert answer.reuse.cached_tokens == cached, path
        assert set(answer.reuse.bytes_by_transport) == {way}, path
        assert not answer.reuse.recomputed, path

    def check_logits(position: int, row: torch.Tensor, bench: int) -> None:
        got = benches[bench].decoder.last_of(position)
        torch.testing.assert_close(got, row, rtol=0, atol=LOGITS_TOLERANCE)

    split = nodes.hand_over(token_ids, NUM_TOKENS)
    assert split.tokens == expected
    check("split", split.decode, length, "tcp")
    check_logits(length, logits[0], 0)
    check_logits(length + 1, logits[1], 1)
    nodes.settle()

    clients[1].clear(nodes="this")
    nodes.decode.clear()
    full = length // BLOCK
    nodes.decode.wait(lambda: clients[1].stats()["peers"]["indexed_blocks"] >= full)
    remote = nodes.decode.run(token_ids, NUM_TOKENS)
    assert remote.token_ids == expected
    check("remote", remote, usable, "tcp")
    check_logits(length, logits[0], 1)

    wait_flushed(stores[0], full)
    admin_of(stores[0]).post("/v1/evict", {"tier": "dram"})
    nodes.prefill.clear()
    nvme = nodes.prefill.run(token_ids, NUM_TOKENS)
    assert nvme.token_ids == expected
    check("nvme", nvme, usable, "file")
    check_logits(length, logits[0], 0)
    nodes.settle()

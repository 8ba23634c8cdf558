"""Every way KV reaches the engine, against transformers on the same random weights."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from moontide.engine_adapters.builtin.model import LoadedModel, load_model
from moontide.engine_adapters.builtin.worker.build import namespace_of
from moontide.kvstore import Namespace

from ..model.tiny_models import Reference, save_random
from .conftest import BLOCK, MakeBench, NewKv
from .test_engine import prompt

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


def test_r06_cold_hbm_and_dram_agree_with_transformers(
    reference: Reference, make_bench: MakeBench, new_kv: NewKv
) -> None:
    bench = make_bench(new_kv())
    for length in BORDERS:
        token_ids = prompt(length, length)
        expected = list(token_ids)
        for _ in range(NUM_TOKENS):
            expected.append(int(reference.logits(expected)[-1].argmax()))
        logits = reference.logits(token_ids)[-1]
        usable = (length - 1) // BLOCK * BLOCK
        for tier in ("cold", "hbm", "dram"):
            if tier == "dram":
                bench.settle()
                bench.clear()
            answer = bench.run(token_ids, NUM_TOKENS)
            assert answer.token_ids == expected[length:], (length, tier)
            reused = {"hbm": answer.reuse.hbm_tokens, "dram": answer.reuse.dram_tokens}
            assert reused == {"hbm": 0, "dram": 0, **({tier: usable} if tier != "cold" else {})}
            torch.testing.assert_close(
                bench.decoder.last_of(length), logits, rtol=0, atol=LOGITS_TOLERANCE
            )
    bench.settle()

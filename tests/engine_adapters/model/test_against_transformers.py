"""Our decoder and transformers, on the same random weights through the same files."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from moontide.engine_adapters.builtin.model import (
    KVTensors,
    LoadedModel,
    Sampling,
    SequenceChunk,
    load_model,
    sample,
)

from .tiny_models import ARCHITECTURES, MakeReference, run_chunks

ENDS = (1, 2, 15, 16, 17, 33, 100, 149, 150)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_logits_are_within_1e4_of_transformers(
    name: str, make_reference: MakeReference, token_ids: list[int]
) -> None:
    reference = make_reference(name)
    model = load_model(str(reference.path))
    ours = run_chunks(model, token_ids, ENDS)
    theirs = reference.logits(token_ids)[[end - 1 for end in ENDS]]
    assert theirs.std() > 0.5, "the comparison means nothing on flat logits"
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_greedy_tokens_equal_those_of_transformers(
    name: str, make_reference: MakeReference, token_ids: list[int]
) -> None:
    reference = make_reference(name)
    model = load_model(str(reference.path))
    assert _greedy(model, token_ids[:40], 24) == _greedy_by(reference.logits, token_ids[:40], 24)


def _greedy(model: LoadedModel, prompt: Sequence[int], count: int) -> list[int]:
    kv = KVTensors(model.config, num_pages=8, page_tokens=16)
    tokens, start = list(prompt), 0
    for _ in range(count):
        chunk = SequenceChunk(tokens[start:], start, range(8))
        start = len(tokens)
        logits = model.decoder.forward([chunk], kv)[0]
        tokens.append(sample(logits, Sampling(temperature=0), start))
    return tokens[len(prompt) :]


def _greedy_by(
    logits: Callable[[Sequence[int]], torch.Tensor], prompt: Sequence[int], count: int
) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(logits(tokens)[-1].argmax()))
    return tokens[len(prompt) :]

"""Tiny random models, saved as Hugging Face saves them, and helpers to run ours step by step."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from moontide.engine_adapters.builtin.model import KVTensors, LoadedModel, SequenceChunk

VOCAB_SIZE = 300
PAGE_TOKENS = 16


@dataclass(frozen=True)
class Reference:
    """A transformers model and the directory it was saved to."""

    path: Path
    model: Any

    def logits(self, token_ids: Sequence[int]) -> torch.Tensor:
        """`[tokens, vocab_size]`."""
        with torch.inference_mode():
            logits: torch.Tensor = self.model(torch.tensor([list(token_ids)])).logits[0]
        return logits


ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-tied": {"tie_word_embeddings": True},
    "llama-llama3-rope": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 5000.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        }
    },
    "llama-linear-rope": {
        "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}
    },
    "mistral": {"sliding_window": None},
    "mistral-tied": {"sliding_window": None, "tie_word_embeddings": True},
    "qwen2": {},
    "qwen2-tied": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 32},
    "qwen3-tied": {"head_dim": 32, "tie_word_embeddings": True},
}

MakeReference = Callable[[str], Reference]


def save_random(name: str, path: Path) -> Any:
    with warnings.catch_warnings():  # theirs, at import
        warnings.simplefilter("ignore")
        import transformers  # slow, and only where it is compared with
    transformers.utils.logging.disable_progress_bar()
    family = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
    prefix = family[name.split("-", maxsplit=1)[0]]
    config = getattr(transformers, f"{prefix}Config")(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=6 if prefix == "Qwen3" else 4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        **ARCHITECTURES[name],
    )
    generator = torch.Generator().manual_seed(len(name))
    model = getattr(transformers, f"{prefix}ForCausalLM")(config).eval()
    for parameter in model.parameters():
        parameter.data = 0.2 * torch.randn(parameter.shape, generator=generator)
        if parameter.dim() == 1:
            parameter.data += 1.0
    model.tie_weights()
    model.save_pretrained(path, max_shard_size="100KB" if name == "llama" else "1GB")
    return model


def make_pool(model: LoadedModel, **options: Any) -> KVTensors:
    return KVTensors(model.config, **{"num_pages": 40, "page_tokens": PAGE_TOKENS, **options})


def pages_for(token_ids: Sequence[int]) -> range:
    return range(-(-len(token_ids) // PAGE_TOKENS))


def run_chunks(
    model: LoadedModel,
    token_ids: Sequence[int],
    ends: Sequence[int],
    *,
    pages: Sequence[int] | None = None,
    kv: KVTensors | None = None,
) -> torch.Tensor:
    """Feeds `token_ids` in chunks that end at `ends`: each chunk's logits, stacked."""
    kv = kv or make_pool(model)
    pages = pages or pages_for(token_ids)
    rows, start = [], 0
    for end in ends:
        rows.append(model.decoder.forward([SequenceChunk(token_ids[start:end], start, pages)], kv))
        start = end
    return torch.cat(rows)


def random_tokens(count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    tokens: list[int] = torch.randint(0, 256, (count,), generator=generator).tolist()
    return tokens

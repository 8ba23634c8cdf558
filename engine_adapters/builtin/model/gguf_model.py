"""A model as one GGUF file: metadata to config, ggml tensor names to Hugging Face's.

llama.cpp stores Q and K of `llama` models permuted for interleaved rotary pairs; they are put
back into Hugging Face's half-split order, which this decoder uses."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from torch import Tensor

from ..errors import ModelError
from .config import ModelConfig, RopeScaling
from .gguf_file import GGUFFile, read_gguf
from .gguf_tokenizer import gguf_token, gguf_tokenizer_json
from .model_source import ModelSource, find_tensor, require_positive

ARCHITECTURES = ("llama", "qwen2", "qwen3")
FREQUENCY_FACTORS = "rope_freqs.weight"

_NAMES = {
    "model.embed_tokens.": "token_embd.",
    "model.norm.": "output_norm.",
    "lm_head.": "output.",
    "input_layernorm.": "attn_norm.",
    "post_attention_layernorm.": "ffn_norm.",
    "self_attn.q_proj.": "attn_q.",
    "self_attn.k_proj.": "attn_k.",
    "self_attn.v_proj.": "attn_v.",
    "self_attn.o_proj.": "attn_output.",
    "self_attn.q_norm.": "attn_q_norm.",
    "self_attn.k_norm.": "attn_k_norm.",
    "mlp.gate_proj.": "ffn_gate.",
    "mlp.up_proj.": "ffn_up.",
    "mlp.down_proj.": "ffn_down.",
}
_LAYER = re.compile(r"model\.layers\.(\d+)\.")


def read_gguf_model(path: Path) -> ModelSource:
    """Raises ModelError naming the file and what is missing or not supported."""
    file = read_gguf(path)
    config = _config(file)
    template = file.metadata.get("tokenizer.chat_template")
    return ModelSource(
        config=config,
        raw_tensors=file.tensors,
        read=partial(_read_tensor, file, config),
        tokenizer_json=gguf_tokenizer_json(file),
        chat_template=template if isinstance(template, str) else None,
        bos_token=gguf_token(file, "bos"),
        eos_token=gguf_token(file, "eos"),
    )


def _config(file: GGUFFile) -> ModelConfig:
    architecture = file.get("general.architecture", str)
    if architecture not in ARCHITECTURES:
        raise ModelError(
            f"{file.path}: architecture {architecture!r} is not supported; "
            f"supported: {', '.join(ARCHITECTURES)}"
        )
    if FREQUENCY_FACTORS in file.tensors:
        raise ModelError(
            f"{file.path}: {FREQUENCY_FACTORS} (llama3 rope scaling) is not supported in GGUF; "
            "load the model from its safetensors directory"
        )

    def size(key: str) -> int:
        return file.get(f"{architecture}.{key}", int)

    heads, hidden = size("attention.head_count"), size("embedding_length")
    head_dim_key = f"{architecture}.attention.key_length"
    head_dim = (
        file.get(head_dim_key, int) if head_dim_key in file.metadata else hidden // max(heads, 1)
    )
    eos = [file.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")]
    bos = file.metadata.get("tokenizer.ggml.bos_token_id")
    config = ModelConfig(
        architecture=architecture,
        num_layers=size("block_count"),
        hidden_size=hidden,
        intermediate_size=size("feed_forward_length"),
        num_heads=heads,
        num_kv_heads=size("attention.head_count_kv"),
        head_dim=head_dim,
        vocab_size=len(file.get("tokenizer.ggml.tokens", list)),
        context_tokens=size("context_length"),
        rope_theta=file.get(f"{architecture}.rope.freq_base", float),
        rope_scaling=_rope_scaling(file, architecture),
        rms_eps=file.get(f"{architecture}.attention.layer_norm_rms_epsilon", float),
        qk_norm=architecture == "qwen3",
        qkv_bias=architecture == "qwen2",
        tie_embeddings="output.weight" not in file.tensors,
        bos_token_id=bos if isinstance(bos, int) else None,
        eos_token_ids=tuple(dict.fromkeys(token for token in eos if isinstance(token, int))),
    )
    require_positive(file.path, config)
    return config


def _rope_scaling(file: GGUFFile, architecture: str) -> RopeScaling | None:
    kind = file.metadata.get(f"{architecture}.rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind == "linear":
        return RopeScaling("linear", file.get(f"{architecture}.rope.scaling.factor", float))
    raise ModelError(
        f"{file.path}: rope scaling {kind!r} is not supported in GGUF; supported: none, linear"
    )


def _read_tensor(file: GGUFFile, config: ModelConfig, name: str, shape: tuple[int, ...]) -> Tensor:
    tensor = find_tensor(file.path, file.tensors, _ggml_name(name), shape)
    if config.architecture == "llama" and ".q_proj." in name:
        return _halves_first(tensor, config.num_heads)
    if config.architecture == "llama" and ".k_proj." in name:
        return _halves_first(tensor, config.num_kv_heads)
    return tensor


def _ggml_name(name: str) -> str:
    name = _LAYER.sub(r"blk.\1.", name)
    for ours, theirs in _NAMES.items():
        name = name.replace(ours, theirs)
    return name


def _halves_first(rows: Tensor, num_heads: int) -> Tensor:
    """Each head's rows from interleaved rotary pairs (0, d/2, 1, d/2 + 1, …) to 0, 1, 2, …"""
    head_dim = rows.shape[0] // num_heads
    paired = rows.view(num_heads, head_dim // 2, 2, *rows.shape[1:])
    return paired.transpose(1, 2).reshape(rows.shape)

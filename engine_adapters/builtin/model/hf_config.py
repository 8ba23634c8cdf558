"""config.json of a Hugging Face directory to ModelConfig. What this decoder cannot compute is
refused by name, never ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ..errors import ModelError
from .config import ARCHITECTURES, ModelConfig, RopeScaling
from .model_source import require_positive

DEFAULT_ROPE_THETA = 10_000.0


class _RopeParameters(msgspec.Struct):
    """`rope_scaling` of older files, `rope_parameters` of newer ones."""

    rope_type: str | None = None
    type: str | None = None  # the older name of rope_type
    rope_theta: float | None = None
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


class _HFConfig(msgspec.Struct):
    model_type: str
    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    vocab_size: int
    max_position_embeddings: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-6
    rope_theta: float | None = None
    rope_scaling: _RopeParameters | None = None
    rope_parameters: _RopeParameters | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    sliding_window: int | None = None
    use_sliding_window: bool = True  # Qwen files set it; where it is absent the window counts
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    quantization_config: dict[str, Any] | None = None


def read_hf_config(path: Path) -> ModelConfig:
    """Raises ModelError naming the file and the setting."""
    try:
        raw = msgspec.json.decode(path.read_bytes(), type=_HFConfig)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: cannot be used as a model config: {error}") from error
    _refuse_unsupported(path, raw)
    rope = raw.rope_parameters or raw.rope_scaling or _RopeParameters()
    config = ModelConfig(
        architecture=raw.model_type,
        num_layers=raw.num_hidden_layers,
        hidden_size=raw.hidden_size,
        intermediate_size=raw.intermediate_size,
        num_heads=raw.num_attention_heads,
        num_kv_heads=raw.num_key_value_heads or raw.num_attention_heads,
        head_dim=raw.head_dim or raw.hidden_size // max(raw.num_attention_heads, 1),
        vocab_size=raw.vocab_size,
        context_tokens=_context_tokens(raw),
        rope_theta=rope.rope_theta or raw.rope_theta or DEFAULT_ROPE_THETA,
        rope_scaling=_rope_scaling(path, rope),
        rms_eps=raw.rms_norm_eps,
        qk_norm=raw.model_type == "qwen3",
        qkv_bias=raw.model_type == "qwen2",
        tie_embeddings=raw.tie_word_embeddings,
        bos_token_id=raw.bos_token_id,
        eos_token_ids=_token_ids(raw.eos_token_id),
    )
    require_positive(path, config)
    return config


def _refuse_unsupported(path: Path, raw: _HFConfig) -> None:
    if raw.model_type not in ARCHITECTURES:
        raise ModelError(
            f"{path}: architecture {raw.model_type!r} is not supported; "
            f"supported: {', '.join(ARCHITECTURES)}"
        )
    refused = {
        "hidden_act": raw.hidden_act if raw.hidden_act != "silu" else None,
        "attention_bias": raw.attention_bias or None,
        "mlp_bias": raw.mlp_bias or None,
        "quantization_config": raw.quantization_config,
    }
    for name, value in refused.items():
        if value is not None:
            raise ModelError(f"{path}: {name} = {value!r} is not supported")


def _context_tokens(raw: _HFConfig) -> int:
    """Within its window, window attention is full attention: the context ends there."""
    if raw.sliding_window is not None and raw.use_sliding_window:
        return min(raw.max_position_embeddings, raw.sliding_window)
    return raw.max_position_embeddings


def _rope_scaling(path: Path, rope: _RopeParameters) -> RopeScaling | None:
    kind = rope.rope_type or rope.type or "default"
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling("linear", rope.factor)
    if kind == "llama3":
        return RopeScaling(
            "llama3",
            rope.factor,
            rope.low_freq_factor,
            rope.high_freq_factor,
            rope.original_max_position_embeddings,
        )
    raise ModelError(
        f"{path}: rope type {kind!r} is not supported; supported: default, linear, llama3"
    )


def _token_ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)

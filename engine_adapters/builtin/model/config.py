"""What a Llama-family model is made of, whichever file format it came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the context a model was trained on. `linear`
    divides them by `factor`; `llama3` divides only those whose wavelength exceeds
    `original_context_tokens / low_freq_factor`, with a ramp up to `/ high_freq_factor`."""

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context_tokens: int = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Shapes and constants of one decoder."""

    architecture: str  # one of ARCHITECTURES
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_tokens: int
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    rms_eps: float
    qk_norm: bool = False
    qkv_bias: bool = False
    tie_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    @property
    def rope_scaling_id(self) -> str:
        """For `Namespace.rope_scaling`: empty without scaling, else every parameter."""
        scaling = self.rope_scaling
        if scaling is None:
            return ""
        if scaling.kind == "linear":
            return f"linear:factor={scaling.factor!r}"
        return (
            f"llama3:factor={scaling.factor!r}:low={scaling.low_freq_factor!r}"
            f":high={scaling.high_freq_factor!r}:original={scaling.original_context_tokens}"
        )

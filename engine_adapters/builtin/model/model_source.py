"""What any model file format gives the loader."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ..errors import ModelError
from .config import ModelConfig
from .raw_tensor import RawTensor
from .weights import ReadTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A model's files, opened and checked; tensors are decoded on `read`."""

    config: ModelConfig
    raw_tensors: dict[str, RawTensor]
    read: ReadTensor
    tokenizer_json: str
    chat_template: str | None
    bos_token: str | None
    eos_token: str | None


def find_tensor(
    path: Path, raw_tensors: dict[str, RawTensor], name: str, shape: tuple[int, ...]
) -> Tensor:
    """Decodes tensor `name`. Raises ModelError when it is missing or not of `shape`."""
    raw = raw_tensors.get(name)
    if raw is None:
        raise ModelError(f"{path}: tensor {name} is missing; is the model complete?")
    if raw.shape != shape:
        raise ModelError(
            f"{path}: tensor {name} has shape {raw.shape}; the config asks for {shape}"
        )
    return raw.to_float32()


def require_positive(path: Path, config: ModelConfig) -> None:
    """Raises ModelError naming the first size no decoder can have."""
    sizes = (
        "num_layers hidden_size intermediate_size num_heads num_kv_heads head_dim vocab_size "
        "context_tokens rope_theta rms_eps"
    )
    for name in sizes.split():
        if not getattr(config, name) > 0:
            raise ModelError(f"{path}: {name} is {getattr(config, name)}; it must be positive")
    if config.num_heads % config.num_kv_heads:
        raise ModelError(
            f"{path}: {config.num_heads} attention heads cannot share {config.num_kv_heads} "
            "kv heads evenly"
        )
    if config.head_dim % 2:
        raise ModelError(f"{path}: head_dim is {config.head_dim}; rotary pairs need an even one")

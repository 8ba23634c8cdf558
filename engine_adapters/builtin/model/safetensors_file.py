"""Tensors of a safetensors file."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from ..errors import ModelError
from .raw_tensor import RawTensor


def read_safetensors(path: Path) -> dict[str, RawTensor]:
    """Tensors that view the mapped file. Raises ModelError naming file and fault."""
    try:
        with safe_open(path, framework="pt") as file:
            return {
                name: RawTensor(
                    name,
                    file.get_slice(name).get_dtype(),
                    tuple(file.get_slice(name).get_shape()),
                    file.get_tensor(name).reshape(-1).view(torch.uint8).numpy().data,
                )
                for name in file.keys()  # noqa: SIM118 - no mapping: it cannot be iterated
            }
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path}: cannot be read as safetensors: {error}") from error

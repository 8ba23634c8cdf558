"""A tensor as it lies in a file, and its values as float32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import ModelError


class Encoding(NamedTuple):
    """Values are stored in groups of `group_values`, each `group_bytes` long."""

    group_values: int
    group_bytes: int


ENCODINGS = {
    "F32": Encoding(1, 4),
    "F16": Encoding(1, 2),
    "BF16": Encoding(1, 2),
    "Q4_0": Encoding(32, 18),
    "Q4_1": Encoding(32, 20),
    "Q8_0": Encoding(32, 34),
}
"""Names as in GGUF; safetensors shares the first three."""


@dataclass(frozen=True, slots=True)
class RawTensor:
    """Read-only bytes of one tensor in its file's encoding; `shape` is row-major."""

    name: str
    encoding: str
    shape: tuple[int, ...]
    data: memoryview

    def to_float32(self) -> Tensor:
        """A new float32 tensor. Raises ModelError for an encoding this build cannot read."""
        decode = _DECODERS.get(self.encoding)
        if decode is None:
            raise ModelError(
                f"tensor {self.name} is stored as {self.encoding}, which is not supported; "
                f"supported: {', '.join(_DECODERS)}"
            )
        raw = np.frombuffer(self.data, np.uint8)
        return torch.from_numpy(decode(raw).reshape(self.shape))


def encoded_bytes(encoding: str, shape: tuple[int, ...]) -> int | None:
    """Bytes of a tensor; None when the encoding is unknown or rows do not fill its groups."""
    layout = ENCODINGS.get(encoding)
    if layout is None or not shape or shape[-1] % layout.group_values:
        return None
    num_values = 1
    for size in shape:
        num_values *= size
    return num_values // layout.group_values * layout.group_bytes


def _f32(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    return raw.view("<f4").astype(np.float32)


def _f16(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    return raw.view("<f2").astype(np.float32)


def _bf16(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    widened = raw.view("<u2").astype(np.uint32)
    widened <<= 16
    return widened.view(np.float32)


def _q4_0(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """d · (nibble − 8)."""
    groups = raw.reshape(-1, 18)
    values = _nibbles(groups[:, 2:])
    values -= 8
    values *= _half(groups[:, :2])
    return values


def _q4_1(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """d · nibble + m."""
    groups = raw.reshape(-1, 20)
    values = _nibbles(groups[:, 4:])
    values *= _half(groups[:, :2])
    values += _half(groups[:, 2:4])
    return values


def _q8_0(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """d · signed byte."""
    groups = raw.reshape(-1, 34)
    values = groups[:, 2:].view(np.int8).astype(np.float32)
    values *= _half(groups[:, :2])
    return values


def _nibbles(packed: NDArray[np.uint8]) -> NDArray[np.float32]:
    """[n, 16] bytes to [n, 32] values: the low nibbles first, then the high ones."""
    values = np.empty((len(packed), 32), np.float32)
    values[:, :16] = packed & 15
    values[:, 16:] = packed >> 4
    return values


def _half(column: NDArray[np.uint8]) -> NDArray[np.float32]:
    """[n, 2] bytes to [n, 1] values."""
    return np.ascontiguousarray(column).view("<f2").astype(np.float32)


_DECODERS: dict[str, Callable[[NDArray[np.uint8]], NDArray[np.float32]]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q8_0": _q8_0,
}

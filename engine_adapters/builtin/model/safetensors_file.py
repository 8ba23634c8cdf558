"""The safetensors container: header length u64 LE ‖ JSON header ‖ data."""

from __future__ import annotations

import struct
from pathlib import Path

import msgspec

from ..errors import ModelError
from .mapped_file import map_file
from .raw_tensor import RawTensor, encoded_bytes

MAX_HEADER_BYTES = 100_000_000  # the format's own bound
_LENGTH = struct.Struct("<Q")


class _TensorInfo(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def read_safetensors(path: Path) -> dict[str, RawTensor]:
    """Tensors that view the mapped file. Raises ModelError naming file and fault."""
    data = map_file(path)
    header_bytes = _LENGTH.unpack_from(data)[0] if len(data) >= _LENGTH.size else 0
    base = _LENGTH.size + header_bytes
    if not 2 <= header_bytes <= MAX_HEADER_BYTES or base > len(data):
        raise ModelError(
            f"{path}: not a whole safetensors file: a header of {header_bytes} bytes in {len(data)}"
        )
    try:
        header = msgspec.json.decode(data[_LENGTH.size : base], type=dict[str, msgspec.Raw])
        header.pop("__metadata__", None)
        infos = {name: msgspec.json.decode(info, type=_TensorInfo) for name, info in header.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: its safetensors header is not valid: {error}") from error
    return {name: _place(path, name, info, data[base:]) for name, info in infos.items()}


def _place(path: Path, name: str, info: _TensorInfo, data: memoryview) -> RawTensor:
    start, stop = info.data_offsets
    if not 0 <= start <= stop <= len(data) or any(size < 0 for size in info.shape):
        raise ModelError(
            f"{path}: tensor {name} of shape {info.shape} lies at {start}..{stop}; "
            f"the file holds {len(data)} bytes of data"
        )
    expected = encoded_bytes(info.dtype, info.shape)
    if expected is not None and expected != stop - start:
        raise ModelError(
            f"{path}: tensor {name} of shape {info.shape} takes {expected} bytes as "
            f"{info.dtype}; it has {stop - start}"
        )
    return RawTensor(name, info.dtype, info.shape, data[start:stop])

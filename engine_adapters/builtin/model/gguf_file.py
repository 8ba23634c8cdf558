"""The GGUF container (version 2 and 3, little endian): metadata and tensor directory.

magic "GGUF" ‖ version u32 ‖ tensors u64 ‖ pairs u64 ‖ pair… ‖ tensor info… ‖ padding ‖ data
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..errors import ModelError
from .mapped_file import map_file
from .raw_tensor import RawTensor, encoded_bytes

Metadata = dict[str, Any]
T = TypeVar("T")

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4

_SCALARS = {  # value type → struct code
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9
_ENCODING_NAMES = {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 8: "Q8_0", 30: "BF16"}
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """`tensors` view the mapped file, which stays mapped as long as any of them lives."""

    path: Path
    metadata: Metadata
    tensors: dict[str, RawTensor]

    def get(self, key: str, kind: type[T]) -> T:
        """Raises ModelError when `key` is missing or has another type."""
        value = self.metadata.get(key)
        if kind is float and isinstance(value, int):
            value = float(value)
        if not isinstance(value, kind):
            found = "is missing" if value is None else f"is a {type(value).__name__}"
            raise ModelError(f"{self.path}: metadata {key} {found}; expected {kind.__name__}")
        return value


def read_gguf(path: Path) -> GGUFFile:
    """Raises ModelError naming the file and the place for anything that is not whole GGUF."""
    data = map_file(path)
    cursor = _Cursor(data)
    try:
        metadata, infos = _read_head(cursor)
        base = _align(cursor.offset, metadata.get("general.alignment", DEFAULT_ALIGNMENT))
        tensors = {info.name: _place_tensor(path, info, data, base) for info in infos}
    except (_Malformed, struct.error, UnicodeDecodeError) as error:
        raise ModelError(
            f"{path}: not a whole GGUF file, at byte {cursor.offset} of {len(data)}: {error}"
        ) from error
    return GGUFFile(path, metadata, tensors)


class _Malformed(Exception):
    """What is wrong; the caller adds file and place."""


class _Cursor:
    """Reads little-endian values; running off the end raises struct.error or _Malformed."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.offset = 0

    def unpack(self, layout: struct.Struct) -> Any:
        (value,) = layout.unpack_from(self.data, self.offset)
        self.offset += layout.size
        return value

    def take(self, num_bytes: int) -> memoryview:
        if num_bytes > len(self.data) - self.offset:
            raise _Malformed(f"{num_bytes} bytes announced, {len(self.data) - self.offset} left")
        start = self.offset
        self.offset += num_bytes
        return self.data[start : self.offset]

    def string(self) -> str:
        return str(self.take(self.unpack(_U64)), "utf-8")


@dataclass(frozen=True, slots=True)
class _TensorInfo:
    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int


def _read_head(cursor: _Cursor) -> tuple[Metadata, list[_TensorInfo]]:
    if (magic := bytes(cursor.take(4))) != MAGIC:
        raise _Malformed(f"it starts with {magic!r}, not {MAGIC!r}")
    if (version := cursor.unpack(_U32)) not in VERSIONS:
        raise _Malformed(f"version {version} is not among {VERSIONS}")
    num_tensors, num_pairs = cursor.unpack(_U64), cursor.unpack(_U64)
    metadata: Metadata = {}
    for _ in range(num_pairs):
        key = cursor.string()
        metadata[key] = _read_value(cursor, cursor.unpack(_U32))
    return metadata, [_read_tensor_info(cursor) for _ in range(num_tensors)]


def _read_value(cursor: _Cursor, type_id: int) -> Any:
    if type_id == _STRING:
        return cursor.string()
    if code := _SCALARS.get(type_id):
        return cursor.unpack(struct.Struct("<" + code))
    if type_id != _ARRAY:
        raise _Malformed(f"value type {type_id} is unknown")
    item_type, count = cursor.unpack(_U32), cursor.unpack(_U64)
    if item_type == _STRING:
        read: Callable[[], str] = cursor.string
        return [read() for _ in range(count)]
    if (code := _SCALARS.get(item_type)) is None:
        raise _Malformed(f"array of value type {item_type} is not supported")
    layout = struct.Struct("<" + code)
    return [value for (value,) in layout.iter_unpack(cursor.take(count * layout.size))]


def _read_tensor_info(cursor: _Cursor) -> _TensorInfo:
    name = cursor.string()
    if not 1 <= (num_dimensions := cursor.unpack(_U32)) <= MAX_DIMENSIONS:
        raise _Malformed(f"tensor {name} has {num_dimensions} dimensions")
    fastest_first = [cursor.unpack(_U64) for _ in range(num_dimensions)]
    return _TensorInfo(
        name, tuple(reversed(fastest_first)), cursor.unpack(_U32), cursor.unpack(_U64)
    )


def _align(offset: int, alignment: Any) -> int:
    if not isinstance(alignment, int) or alignment < 1:
        raise _Malformed(f"general.alignment is {alignment!r}")
    return -(-offset // alignment) * alignment


def _place_tensor(path: Path, info: _TensorInfo, data: memoryview, base: int) -> RawTensor:
    encoding = _ENCODING_NAMES.get(info.type_id)
    if encoding is None:
        raise ModelError(
            f"{path}: tensor {info.name} has ggml type {info.type_id}, which is not supported; "
            f"supported: {', '.join(_ENCODING_NAMES.values())}"
        )
    if (num_bytes := encoded_bytes(encoding, info.shape)) is None:
        raise _Malformed(f"tensor {info.name} of shape {info.shape} cannot be {encoding}")
    start = base + info.offset
    if start + num_bytes > len(data):
        raise _Malformed(f"tensor {info.name} ends at byte {start + num_bytes}")
    return RawTensor(info.name, encoding, info.shape, data[start : start + num_bytes])

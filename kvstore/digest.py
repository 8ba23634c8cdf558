"""BLAKE3 over typed, length-prefixed fields: no two different field lists give the same bytes.

field  = tag u8 ‖ length u64 LE ‖ payload
tags   = 1 UTF-8 text, 2 raw bytes, 3 unsigned integer (u64 LE), 4 token ids (u32 LE each)
input  = field(text domain) ‖ field ‖ field …
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from blake3 import blake3

Field = str | bytes | int

TEXT, RAW, INTEGER, TOKENS = 1, 2, 3, 4
_PREFIX = struct.Struct("<BQ")
_U64 = struct.Struct("<Q")


def encode_field(field: Field) -> bytes:
    if isinstance(field, str):
        data = field.encode()
        return _PREFIX.pack(TEXT, len(data)) + data
    if isinstance(field, int):
        return _PREFIX.pack(INTEGER, 8) + _U64.pack(field)
    return _PREFIX.pack(RAW, len(field)) + bytes(field)


def field_prefix(tag: int, num_bytes: int) -> bytes:
    return _PREFIX.pack(tag, num_bytes)


def digest(domain: str, fields: Iterable[Field]) -> bytes:
    """32 bytes."""
    return blake3(encode_field(domain) + b"".join(map(encode_field, fields))).digest()

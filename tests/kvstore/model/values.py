"""Values that tell what they are: whether one is whole is seen without a copy of what was put."""

from __future__ import annotations

import struct

import numpy as np

_HEAD = struct.Struct("<QQ")
_VERSION_BITS, _SIZE_BITS = 24, 32
_TINY_VERSIONS = 256


def value_of(key: int, version: int, size: int) -> bytes:
    """`size` bytes of which every eight tell key, version, size and their own offset. Of values too
    small for a head, versions repeat after 256."""
    if size < _HEAD.size:
        version %= _TINY_VERSIONS
    words = np.arange(-(-size // 8), dtype=np.uint64)
    words *= np.uint64(0x9E3779B97F4A7C15)
    words += np.uint64(_seed(key, version, size))
    if len(words) >= 2:  # the first two say what the rest must be
        words[0], words[1] = key << _VERSION_BITS | version, size
    return words.tobytes()[:size]


def version_of(key: int, data: bytes) -> int | None:
    """Which version of `key` these bytes are, whole; None: none. Of values too small for a head it
    is the first that has these bytes."""
    if len(data) < _HEAD.size:
        versions = range(_TINY_VERSIONS)
        return next((v for v in versions if value_of(key, v, len(data)) == data), None)
    version = _HEAD.unpack_from(data)[0] & (1 << _VERSION_BITS) - 1
    return version if value_of(key, version, len(data)) == data else None


def _seed(key: int, version: int, size: int) -> int:
    packed = (key << _VERSION_BITS | version) << _SIZE_BITS | size
    return packed * 0xD6E8FEB86659FD93 % (1 << 64)

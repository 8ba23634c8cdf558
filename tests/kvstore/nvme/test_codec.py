"""Compression by byte planes, and frames that lie."""

from __future__ import annotations

import numpy as np
import pytest
import zstandard

from moontide.kvstore.errors import Corrupt
from moontide.kvstore.nvme.codec import Codec


def bfloat16s(count: int) -> memoryview:
    """Of like magnitude, with random mantissas, as the numbers of a KV block are."""
    wide = np.random.default_rng(1).uniform(0.5, 2, count).astype("<f4")
    return memoryview((wide.view("<u4") >> 16).astype("<u2").tobytes())


def noise(num_bytes: int) -> memoryview:
    return memoryview(np.random.default_rng(2).bytes(num_bytes))


@pytest.mark.parametrize("element_bytes", [1, 2, 4, 8])
@pytest.mark.parametrize("length", [512, 1000, 4096, 100_001])
def test_what_was_compressed_comes_back(element_bytes: int, length: int) -> None:
    codec = Codec()
    data = memoryview(bytes(range(251)) * (length // 251 + 1))[:length]
    stored = codec.compress(data, element_bytes)
    assert len(stored) < length
    back = bytearray(length)
    codec.decompress(memoryview(stored), memoryview(back), element_bytes)
    assert back == data


def test_planes_find_the_gain_in_half_floats() -> None:
    codec = Codec()
    data = bfloat16s(32 << 10)
    assert codec.gains([data], 2)
    assert len(codec.compress(data, 2)) < 0.9 * len(codec.compress(data, 1))


def test_noise_and_short_extents_are_stored_raw() -> None:
    codec = Codec()
    assert not codec.gains([noise(64 << 10)], 2)
    assert not codec.gains([memoryview(bytes(100))], 1)
    assert codec.compress(noise(4096), 2) == noise(4096)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"nothing",
        zstandard.ZstdCompressor().compress(bytes(4095)),
        zstandard.ZstdCompressor(write_content_size=False).compress(bytes(4096)),
        zstandard.ZstdCompressor().compress(bytes(4096))[:-3],
        bytes.fromhex("28b52ffde0") + (1 << 62).to_bytes(8, "little"),
    ],
)
def test_frames_that_lie_are_corrupt(frame: bytes) -> None:
    with pytest.raises(Corrupt):
        Codec().decompress(memoryview(frame), memoryview(bytearray(4096)), 1)

"""Compression of extents: zstd, after sorting the bytes of each number into planes.

The high bytes of 16-bit floats repeat (sign and exponent), the low ones are noise; side by side,
zstd finds the first and skips the second.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import zstandard

from ..errors import Corrupt

MIN_GAIN = 1.15
"""Raw over compressed size, below which an entry is stored raw."""
MIN_EXTENT_BYTES = 512
_SAMPLE_BYTES = 64 << 10
_LEVEL = 1


class Codec:
    """One thread's compressor and decompressor: shared ones crash (zstandard 0.25)."""

    def __init__(self) -> None:
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL)
        self._decompressor = zstandard.ZstdDecompressor()

    def gains(self, extents: Sequence[memoryview], element_bytes: int) -> bool:
        """Whether a sample of the middle extent compresses well enough."""
        middle = extents[len(extents) // 2]
        sample = middle[: min(_SAMPLE_BYTES, len(middle)) // element_bytes * element_bytes]
        if len(sample) < MIN_EXTENT_BYTES:
            return False
        compressed = self._compressor.compress(_to_planes(sample, element_bytes))
        return len(compressed) * MIN_GAIN <= len(sample)

    def compress(self, extent: memoryview, element_bytes: int) -> bytes | memoryview:
        """The extent itself when compression does not shorten it."""
        if len(extent) < MIN_EXTENT_BYTES:
            return extent
        compressed = self._compressor.compress(_to_planes(extent, element_bytes))
        return compressed if len(compressed) < len(extent) else extent

    def decompress(self, data: memoryview, destination: memoryview, element_bytes: int) -> None:
        """Fills `destination`, which has the extent's raw length. Raises Corrupt; allocates no
        more than that length, whatever the frame claims."""
        try:
            claimed = zstandard.get_frame_parameters(data).content_size
            if claimed != len(destination):
                raise Corrupt(f"frame of {claimed} bytes for an extent of {len(destination)}")
            planes = self._decompressor.decompress(data)
        except zstandard.ZstdError as error:
            raise Corrupt(f"extent does not decompress: {error}") from error
        if len(planes) != len(destination):
            raise Corrupt(f"{len(planes)} bytes for an extent of {len(destination)}")
        _from_planes(planes, destination, element_bytes)


def _to_planes(data: memoryview, element_bytes: int) -> memoryview:
    whole = len(data) // element_bytes * element_bytes
    if element_bytes == 1 or whole == 0:
        return data
    planes = np.empty(len(data), np.uint8)
    numbers = np.frombuffer(data[:whole], np.uint8).reshape(-1, element_bytes)
    planes[:whole].reshape(element_bytes, -1)[:] = numbers.T
    planes[whole:] = np.frombuffer(data[whole:], np.uint8)
    return planes.data


def _from_planes(planes: bytes, destination: memoryview, element_bytes: int) -> None:
    whole = len(destination) // element_bytes * element_bytes
    if element_bytes == 1 or whole == 0:
        destination[:] = planes
        return
    source, target = np.frombuffer(planes, np.uint8), np.frombuffer(destination, np.uint8)
    target[:whole].reshape(-1, element_bytes)[:] = source[:whole].reshape(element_bytes, -1).T
    target[whole:] = source[whole:]

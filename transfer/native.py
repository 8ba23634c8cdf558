"""copying.c, where it was built and this processor can run it."""

from __future__ import annotations

import ctypes
import logging
from pathlib import Path

import numpy as np

logger = logging.getLogger(__name__)

LIBRARY = Path(__file__).with_name("_copying.so")
LEAST_SUMMED_BYTES = 241
"""xxh3 has other formulas for smaller inputs."""


class NativeCopies:
    """One pass over the memory, past the caches; without the GIL. Buffers are flat, of equal size,
    and do not overlap."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._copy = library.moontide_copy
        self._copy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
        self._copy.restype = None
        self._copy_and_sum = library.moontide_copy_and_sum
        self._copy_and_sum.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
        self._copy_and_sum.restype = ctypes.c_uint64

    def copy(self, destination: memoryview, source: memoryview) -> None:
        self._copy(_address(destination), _address(source), len(destination))

    def copy_and_checksum(self, destination: memoryview, source: memoryview) -> int:
        """The xxh3-64. At least LEAST_SUMMED_BYTES."""
        assert len(destination) >= LEAST_SUMMED_BYTES
        count = len(destination)
        checksum: int = self._copy_and_sum(_address(destination), _address(source), count)
        return checksum


def load(path: Path = LIBRARY) -> NativeCopies | None:
    """None: Python has to copy."""
    try:
        library = ctypes.CDLL(str(path))
        copies = NativeCopies(library)
    except (OSError, AttributeError) as error:  # not built, or by another version of the source
        logger.debug("native copies not loaded path=%s reason=%s", path, error)
        return None
    return copies if library.moontide_copies_supported() else None


def _address(buffer: memoryview) -> int:
    address: int = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
    return address

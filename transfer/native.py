"""The extension module _copying (copying.c), where it was built and this processor can run it."""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from .copying import Bytes

logger = logging.getLogger(__name__)

LEAST_SUMMED_BYTES = 241
"""xxh3 has other formulas for smaller inputs."""


class NativeCopies(Protocol):
    """In one pass over the memory, from 256 KiB on past the caches. Buffers are C-contiguous and do
    not overlap. ValueError when sizes differ, TypeError or BufferError when the destination is
    read-only. Releases the GIL from 64 KiB on."""

    def copy(self, destination: memoryview, source: Bytes, /) -> None:
        """`source` over all of `destination`."""

    def copy_and_checksum(self, destination: memoryview, source: Bytes, /) -> int:
        """The xxh3-64 of what `destination` then holds, also when `source` changes meanwhile. At
        least LEAST_SUMMED_BYTES (ValueError)."""


def load() -> NativeCopies | None:
    """None: Python has to copy."""
    try:
        module = importlib.import_module("._copying", __package__)
    except ImportError as error:
        logger.debug("native copies not loaded reason=%s", error)
        return None
    return cast(NativeCopies, module) if module.is_supported() else None

"""The function of copying.c, where it was built."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from pathlib import Path

logger = logging.getLogger(__name__)

CopyPastCaches = Callable[[int, int, int], None]
"""Copies to an address from an address so many bytes, without overlap. Releases the GIL."""
LIBRARY = Path(__file__).with_name("_copying.so")


def load(library: Path = LIBRARY) -> CopyPastCaches | None:
    """None: it was not built."""
    try:
        function = ctypes.CDLL(str(library)).copy_past_caches
    except OSError as error:
        logger.debug("native copies not loaded reason=%s", error)
        return None
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    function.restype = None
    copy_past_caches: CopyPastCaches = function
    return copy_past_caches

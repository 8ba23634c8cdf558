"""Giving memory back to the machine once most of what was stored has gone."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator

from .catalog import Catalog

WORTH_GIVING_BACK = 4096
"""Entries whose memory (about 1 MiB) is worth a pass over the heap, which takes milliseconds."""


def give_memory_back(catalog: Catalog) -> Iterator[None]:
    """Shrinks the catalog to what it holds and returns free heap pages to the machine, in parts
    between which others may act."""
    yield from catalog.trim()
    gc.collect()  # also empties the interpreter's free lists: a few tuples there hold whole arenas
    yield
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
    if malloc_trim is not None:
        malloc_trim(0)

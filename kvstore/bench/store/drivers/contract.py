"""What a contestant gives, and what is asked of it.

stdin   one JSON request a line   {"do": OPERATION, …}
stdout  one JSON answer a line    {"ok": …} | {"error": TEXT}
"""

from __future__ import annotations

import importlib
import mmap
from collections.abc import Sequence
from typing import Any, Protocol

Region = Any
"""A stretch of a contestant's memory in the form its calls take: made outside of what is timed."""


class Failed(Exception):
    """A contestant did not do what it was asked; the text says what."""


class Store(Protocol):
    """Calls of one contestant, each as its users would make it. Keys are strings; a put counts only
    when the value can be read afterwards."""

    def region(self, area: Area, offset: int, num_bytes: int) -> Region: ...
    def put(self, key: str, value: Region) -> bool: ...
    def put_many(self, keys: Sequence[str], values: Sequence[Region]) -> int: ...
    def get(self, key: str, target: Region) -> bool: ...
    def get_many(self, keys: Sequence[str], targets: Sequence[Region]) -> int: ...
    def count_existing(self, keys: Sequence[str]) -> int: ...
    def remove_many(self, keys: Sequence[str]) -> None: ...
    def clear(self) -> None: ...


class Area:
    """Page-aligned memory that values are put from or got into, touched once; private, as arrays
    and tensors are."""

    def __init__(self, num_bytes: int) -> None:
        self.memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.view = memoryview(self.memory)
        for offset in range(0, num_bytes, mmap.PAGESIZE):
            self.memory[offset] = 0

    def __len__(self) -> int:
        return len(self.view)


def foreign(module: str) -> Any:
    """A module of the interpreter this runs in. By name, since ours lacks it."""
    return importlib.import_module(module)

"""Files as read-only memory."""

from __future__ import annotations

import mmap
from pathlib import Path

from ..errors import ModelError


def map_file(path: Path) -> memoryview:
    """The file's bytes, mapped as long as any view of them lives. Raises ModelError."""
    try:
        with path.open("rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        raise ModelError(f"{path}: cannot be read: {error}") from error

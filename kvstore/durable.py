"""Small files that survive a crash whole: the old content or the new, never a part of either."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path


def write_durably(
    path: Path, draft: Path, data: bytes, at: Callable[[str], None] = lambda _: None
) -> None:
    """Replaces `path` by way of `draft`, a name in the same directory. When it returns, no loss of
    power brings the old content back. Raises OSError, with the old content in place. `at` is called
    before each step on the disk, with its name."""
    try:
        at("create")
        with draft.open("wb") as opened:
            at("write")
            opened.write(data)
            opened.flush()
            at("sync")
            os.fsync(opened.fileno())
        at("replace")
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
    at("sync directory")
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)

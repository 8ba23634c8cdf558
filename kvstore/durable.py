"""Small files that survive a crash whole: the old content or the new, never a part of either."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_durably(path: Path, draft: Path, data: bytes) -> None:
    """Replaces `path` by way of `draft`, a name in the same directory. When it returns, no loss of
    power brings the old content back. Raises OSError, with the old content in place."""
    try:
        with draft.open("wb") as opened:
            opened.write(data)
            opened.flush()
            os.fsync(opened.fileno())
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)

"""A file's pages in memory, so that who reads them through another mapping waits for no disk."""

from __future__ import annotations

import logging
import mmap
import os
from pathlib import Path

logger = logging.getLogger(__name__)
MAX_LOCKED_BYTES = 256 << 20
"""Memory that nothing else can have. Further pages stay as long as memory is not short."""
STEP_BYTES, STEP_RATIO = 1 << 20, 1 / 8
"""A growing file is looked after so much, and so much of what it has, at a time: its newest pages
were just written, and each step takes a descriptor."""
_MAP_LOCKED = 0x2000
_MADV_POPULATE_READ = 22


class ResidentFile:
    """Maps the whole pages that a file has, and locks them as far as the process may. One thread;
    `keep` reads what is not in memory, so that has to happen before anyone waits, or right after it
    was written."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._maps: list[mmap.mmap] = []
        self._end = 0
        self._can_lock = True

    def keep(self) -> None:
        """Also what has been added since. Where there is no memory, it is left out for now."""
        end = os.fstat(self._file).st_size // mmap.PAGESIZE * mmap.PAGESIZE
        if end - self._end < (max(STEP_BYTES, STEP_RATIO * self._end) if self._maps else 1):
            return
        try:
            self._maps.append(self._mapped(self._end, end - self._end))
        except OSError as error:
            logger.warning("nvme_pages_not_kept bytes=%d reason=%s", end - self._end, error)
            return
        self._end = end

    def close(self) -> None:
        for mapped in self._maps:
            mapped.close()
        self._maps = []
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def _mapped(self, offset: int, num_bytes: int) -> mmap.mmap:
        if self._can_lock and offset + num_bytes <= MAX_LOCKED_BYTES:
            try:
                return self._map(offset, num_bytes, mmap.MAP_SHARED | _MAP_LOCKED)
            except OSError as error:
                self._can_lock = False
                logger.info("nvme_pages_not_locked bytes=%d reason=%s", num_bytes, error)
        mapped = self._map(offset, num_bytes, mmap.MAP_SHARED)
        mapped.madvise(_MADV_POPULATE_READ)
        return mapped

    def _map(self, offset: int, num_bytes: int, flags: int) -> mmap.mmap:
        return mmap.mmap(self._file, num_bytes, flags, mmap.PROT_READ, offset=offset)

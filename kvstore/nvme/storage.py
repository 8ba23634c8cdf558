"""The one door to disk: every change the tier makes there is a method here, so that a decorator can
fail or end the process at any of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import lmdb

from moontide.transfer import DirectFile, FileAccess, sync_directory
from moontide.transfer.errors import FileFailed

DISK_ERRORS = (FileFailed, OSError, lmdb.Error)
"""What a disk that is full or broken raises."""


class RegionFile(Protocol):
    """As `transfer.DirectFile`, which tells what each raises."""

    path: Path
    is_direct: bool

    def size(self) -> int: ...
    def read_into(self, buffers: Sequence[memoryview], offset: int) -> None: ...
    def write_from(self, buffers: Sequence[memoryview], offset: int) -> None: ...
    def reserve(self, num_bytes: int) -> None: ...
    def truncate(self, num_bytes: int) -> None: ...
    def sync(self) -> None: ...
    def close(self) -> None: ...


class Storage:
    """The real disk. Methods raise one of DISK_ERRORS."""

    def open_file(self, path: Path, access: FileAccess) -> RegionFile:
        return DirectFile(path, access)

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)
        sync_directory(target.parent)

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def free_bytes(self, directory: Path) -> int:
        file_system = os.statvfs(directory)
        return file_system.f_bavail * file_system.f_frsize

    def overwrite(self, file: int, data: bytes) -> None:
        """At the start of an open file, without a sync."""
        os.pwrite(file, data, 0)

    def before_index_commit(self) -> None:
        """Called before each commit of the index; a decorator may raise."""

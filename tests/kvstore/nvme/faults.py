"""Storage whose n-th change of the disk fails, or ends the process."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from moontide.kvstore.nvme.storage import RegionFile, Storage
from moontide.transfer import FileAccess
from moontide.transfer.errors import FileFailed

Fault = Callable[[str], None]


class Countdown:
    """Calls `fault` at the n-th change, 1 the first; later ones pass. `points` names all seen."""

    def __init__(self, number: int, fault: Fault) -> None:
        self.points: list[str] = []
        self._number = number
        self._fault = fault
        self._lock = threading.Lock()

    def __call__(self, point: str) -> None:
        with self._lock:
            self.points.append(point)
            is_due = len(self.points) == self._number
        if is_due:
            self._fault(point)


class FaultyStorage(Storage):
    """`at` is called before each change once `armed`. A write is two: it may stop half-way."""

    def __init__(self, at: Fault) -> None:
        self._at = at
        self.armed = False

    def at(self, point: str) -> None:
        if self.armed:
            self._at(point)

    def open_file(self, path: Path, access: FileAccess) -> RegionFile:
        if access is FileAccess.CREATE:
            self.at("create")
        return _FaultyFile(super().open_file(path, access), self.at)

    def rename(self, source: Path, target: Path) -> None:
        self.at("rename")
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self.at("unlink")
        super().unlink(path)

    def overwrite(self, file: int, data: bytes) -> None:
        self.at("identity")
        super().overwrite(file, data)

    def before_index_commit(self) -> None:
        self.at("index")


class _FaultyFile:
    def __init__(self, file: RegionFile, at: Fault) -> None:
        self._file = file
        self._at = at
        self.path = file.path
        self.is_direct = file.is_direct

    def size(self) -> int:
        return self._file.size()

    def read_into(self, buffers: Sequence[memoryview], offset: int) -> None:
        self._at("read")
        self._file.read_into(buffers, offset)

    def write_from(self, buffers: Sequence[memoryview], offset: int) -> None:
        self._at("write")
        half = buffers[0][: buffers[0].nbytes // 8192 * 4096]
        if half:
            self._file.write_from([half], offset)
            self._at("write half")
        self._file.write_from(buffers, offset)

    def reserve(self, num_bytes: int) -> None:
        self._at("reserve")
        self._file.reserve(num_bytes)

    def truncate(self, num_bytes: int) -> None:
        self._at("truncate")
        self._file.truncate(num_bytes)

    def sync(self) -> None:
        self._at("sync")
        self._file.sync()

    def close(self) -> None:
        self._file.close()


def disk_error(point: str) -> None:
    raise FileFailed(OSError(errno.EIO, "injected"), point)


def disk_full(point: str) -> None:
    raise FileFailed(OSError(errno.ENOSPC, "injected"), point)


def kill(_: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)

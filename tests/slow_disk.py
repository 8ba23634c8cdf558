"""A store whose disk gives so many bytes a second, whatever it is made of: `python -m
tests.slow_disk BYTES_PER_S store …`."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from moontide.kvstore.cli import main
from moontide.kvstore.nvme.storage import RegionFile, Storage
from moontide.transfer import DirectFile, FileAccess

from .store_process import StoreProcess

ROOT = Path(__file__).parents[1]


class SlowDiskStore(StoreProcess):
    bytes_per_s = 0.0

    def launch(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", __name__, str(self.bytes_per_s), *self.arguments()]
        with self.log.open("ab") as log:
            return subprocess.Popen(command, stderr=log, stdin=subprocess.DEVNULL, cwd=ROOT)


class Pace:
    """Of all readers together."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_at = 0.0

    def take(self, num_bytes: int) -> None:
        with self._lock:
            now = time.monotonic()
            self._free_at = max(now, self._free_at) + num_bytes / self._bytes_per_s
            wait_s = self._free_at - now
        time.sleep(wait_s)


class SlowFile:
    """A RegionFile that is slow to read."""

    def __init__(self, file: RegionFile, pace: Pace) -> None:
        self._file = file
        self._pace = pace

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read_into(self, buffers: Sequence[memoryview], offset: int) -> None:
        self._pace.take(sum(buffer.nbytes for buffer in buffers))
        self._file.read_into(buffers, offset)


def slowly(pace: Pace) -> Callable[[Storage, Path, FileAccess], RegionFile]:
    return lambda storage, path, access: SlowFile(DirectFile(path, access), pace)


if __name__ == "__main__":
    Storage.open_file = slowly(Pace(float(sys.argv[1])))  # type: ignore[method-assign]
    main(sys.argv[2:], prog_name="moontide")

"""Disks: real files, of which a loss of power takes what was not synced; and LMDB, which ends with
its process."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import lmdb

from .scheduler import Process, Scheduler

PAGE_BYTES = 4096
"""Written whole or not at all."""
SYNC_SECONDS = (1e-4, 2e-2)
"""What a sync may take; reads and writes take the clock's least step."""


class _Unsynced(NamedTuple):
    path: str
    offset: int
    before: bytes


class Disks:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._unsynced: dict[Process, list[_Unsynced]] = {}
        self._environments: dict[Process, list[Any]] = {}

    def pwritev(self, file: int, buffers: Sequence[memoryview], offset: int) -> int:
        self._remember(file, offset, sum(buffer.nbytes for buffer in buffers))
        return os.pwritev(file, buffers, offset)

    def pwrite(self, file: int, data: bytes, offset: int) -> int:
        self._remember(file, offset, len(data))
        return os.pwrite(file, data, offset)

    def sync(self, file: int) -> None:
        """Takes its time; what was written before it began is safe after it."""
        self._scheduler.sleep(self._scheduler.rng.uniform(*SYNC_SECONDS))
        path = os.readlink(f"/proc/self/fd/{file}")
        mine = self._unsynced.get(self._scheduler.current.process, [])
        mine[:] = [each for each in mine if each.path != path]

    def open_environment(self, *arguments: Any, **options: Any) -> Any:
        environment = lmdb.open(*arguments, **options)
        process = self._scheduler.current.process
        self._environments.setdefault(process, []).append(environment)
        return environment

    def killed(self, process: Process) -> None:
        for environment in self._environments.pop(process, []):
            environment.close()

    def lost_power(self, process: Process, rng: random.Random) -> None:
        """Of what was not synced each page is written or not, whatever came after it."""
        for each in reversed(self._unsynced.pop(process, [])):
            if not os.path.exists(each.path):
                continue
            with open(each.path, "r+b", buffering=0) as opened:
                for start in range(0, len(each.before), PAGE_BYTES):
                    if rng.random() < 0.5:
                        os.pwrite(
                            opened.fileno(),
                            each.before[start : start + PAGE_BYTES],
                            each.offset + start,
                        )

    def _remember(self, file: int, offset: int, num_bytes: int) -> None:
        path = os.readlink(f"/proc/self/fd/{file}")
        with open(path, "rb") as opened:
            before = os.pread(opened.fileno(), num_bytes, offset)
        process = self._scheduler.current.process
        self._unsynced.setdefault(process, []).append(_Unsynced(path, offset, before))

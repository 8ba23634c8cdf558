"""What this machine can do at best, in Python: copies, a raw unix socket, O_DIRECT."""

from __future__ import annotations

import contextlib
import mmap
import os
import platform
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..areas import Area, filled
from ..contract import Failed
from ..serving import Driver, serve
from .timing import Bench, Clock

MESSAGE_BYTES = 64


class Copies:
    """memcpy between touched, page-aligned memory: what a put and a get cannot do without."""

    def __init__(self, pool_bytes: int) -> None:
        self._pool = Area(pool_bytes)
        self._next = 0
        self._places: dict[str, memoryview] = {}

    def region(self, area: Area, offset: int, num_bytes: int) -> memoryview:
        return area.view[offset : offset + num_bytes]

    def put(self, key: str, value: memoryview) -> bool:
        if self._next + len(value) > len(self._pool):
            self._next = 0
        place = self._pool.view[self._next : self._next + len(value)]
        place[:] = value
        self._next += len(value)
        self._places[key] = place
        return True

    def put_many(self, keys: Sequence[str], values: Sequence[memoryview]) -> int:
        return sum(self.put(key, value) for key, value in zip(keys, values, strict=True))

    def get(self, key: str, target: memoryview) -> bool:
        target[:] = self._places[key]
        return True

    def get_many(self, keys: Sequence[str], targets: Sequence[memoryview]) -> int:
        return sum(self.get(key, target) for key, target in zip(keys, targets, strict=True))

    def count_existing(self, keys: Sequence[str]) -> int:
        return sum(key in self._places for key in keys)

    def remove_many(self, keys: Sequence[str]) -> None:
        for key in keys:
            del self._places[key]

    def clear(self) -> None:
        self._places.clear()
        self._next = 0


class Echo:
    """A process that sends back what it gets over a unix socket; blocking calls on both sides."""

    def __init__(self) -> None:
        self._socket, other = socket.socketpair()
        self._child = os.fork()
        if self._child == 0:
            self._socket.close()
            with contextlib.suppress(OSError):
                while message := other.recv(MESSAGE_BYTES):
                    other.send(message)
            os._exit(0)
        other.close()

    def round_trips(self, request: Mapping[str, Any]) -> list[float]:
        message, clock = bytes(MESSAGE_BYTES), Clock(request)
        while not clock.is_done():
            clock.time(lambda: self._ask(message), MESSAGE_BYTES)
        return clock.seconds

    def close(self) -> None:
        self._socket.close()
        os.waitpid(self._child, 0)

    def _ask(self, message: bytes) -> int:
        self._socket.send(message)
        return len(self._socket.recv(MESSAGE_BYTES))


class Disk:
    """One file written and read past the page cache, a block after the other."""

    def __init__(self) -> None:
        self._block: mmap.mmap | None = None

    def write(self, request: Mapping[str, Any]) -> float:
        """Seconds, the blocks being durable at the end."""
        block = self._block_of(request["block_bytes"])
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT
        with _opened(Path(request["path"]), flags) as descriptor:
            start = time.perf_counter()
            for _ in range(request["count"]):
                _check(os.write(descriptor, block), len(block))
            os.fdatasync(descriptor)
            return time.perf_counter() - start

    def read(self, request: Mapping[str, Any]) -> float:
        """Seconds. The file has to be there."""
        block = self._block_of(request["block_bytes"])
        with _opened(Path(request["path"]), os.O_RDONLY | os.O_DIRECT) as descriptor:
            start = time.perf_counter()
            for _ in range(request["count"]):
                _check(os.readv(descriptor, [block]), len(block))
            return time.perf_counter() - start

    def _block_of(self, num_bytes: int) -> mmap.mmap:
        if self._block is None or len(self._block) != num_bytes:
            self._block = filled(num_bytes).memory
        return self._block


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Any:
    descriptor = os.open(path, flags, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _check(done: int, expected: int) -> None:
    if done != expected:
        raise Failed(f"the disk took or gave {done} of {expected} bytes")


def begin(request: Mapping[str, Any]) -> Driver:
    echo = Echo()
    disk = Disk()
    assert threading.active_count() == 1  # no thread may live at a fork
    bench = Bench(Copies(request["pool_bytes"]), request["area_bytes"])
    return Driver(
        f"Python {platform.python_version()}",
        {
            **bench.operations(),
            "round_trip": echo.round_trips,
            "direct_write": disk.write,
            "direct_read": disk.read,
        },
        close=echo.close,
    )


if __name__ == "__main__":
    serve(begin)

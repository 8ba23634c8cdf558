"""A contestant's memory and its server half: a child process that ends with its parent."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import wait
from typing import Any

from ..areas import Area, filled
from ..contract import Failed

START_SECONDS = 120.0
_READ_BYTES = 1 << 16

Announce = Callable[[Mapping[str, Any]], None]
Serve = Callable[[tuple[Area, Area], Announce], contextlib.AbstractContextManager[None]]
"""Serves both areas within the context; announces where."""


def areas_of(num_bytes: int) -> tuple[Area, Area]:
    """SOURCE and TARGET, or SERVED and LANDING."""
    return filled(num_bytes), Area(num_bytes)


class ServerHalf:
    """Forks: no thread may live yet. `hello` is what the child announced."""

    def __init__(self, serve: Serve, area_bytes: int) -> None:
        """Raises Failed."""
        assert threading.active_count() == 1
        announced, told = os.pipe()
        ends, self._end = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(announced)
            os.close(self._end)
            _run(serve, area_bytes, told, ends)
        os.close(told)
        os.close(ends)
        try:
            self.hello = _hello(announced)
        except Failed:
            self.close()
            raise
        finally:
            os.close(announced)

    def cpu_seconds(self) -> float:
        """Of all its threads, ended ones too: the kernel's clock of another process."""
        return time.clock_gettime((~self.pid << 3) | 2)

    def close(self) -> None:
        os.close(self._end)
        os.waitpid(self.pid, 0)


def _run(serve: Serve, area_bytes: int, told: int, ends: int) -> None:
    """The child's whole life."""

    def announce(hello: Mapping[str, Any]) -> None:
        os.write(told, json.dumps(hello).encode() + b"\n")

    try:
        with serve(areas_of(area_bytes), announce):
            os.read(ends, 1)  # until the parent is gone
    except Exception as error:  # noqa: BLE001 - whatever a peer's library raises ends in one answer
        with contextlib.suppress(OSError):
            announce({"error": f"{type(error).__name__}: {error}"})
    finally:
        os._exit(0)


def _hello(descriptor: int) -> dict[str, Any]:
    deadline, text = time.monotonic() + START_SECONDS, b""
    while not text.endswith(b"\n"):
        left = max(deadline - time.monotonic(), 0)
        if not wait([descriptor], left):
            raise Failed(f"the server half was not ready within {START_SECONDS:g} s")
        chunk = os.read(descriptor, _READ_BYTES)
        if not chunk:
            raise Failed("the server half ended before it was ready")
        text += chunk
    hello: dict[str, Any] = json.loads(text)
    if "error" in hello:
        raise Failed(f"server half: {hello['error']}")
    return hello

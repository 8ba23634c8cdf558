"""Ports for processes that have to be told one: none that the kernel gives to others, and none that
another test process takes."""

from __future__ import annotations

import itertools
import os

from moontide.conductor.launch.ports import is_free

_FIRST = 10_000  # below those that `moontide up` finds
_SHARE, _SHARES = 1000, 10  # ports of one worker of pytest-xdist, and of how many
_numbers = itertools.count(os.getpid())


def free_port() -> int:
    """On which nobody listens, and another one each time."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = _FIRST + _SHARE * (worker % _SHARES)
    for number in itertools.islice(_numbers, _SHARE):
        port = first + number % _SHARE
        if is_free(port):
            return port
    raise AssertionError(f"no port from {first} to {first + _SHARE - 1} is free")

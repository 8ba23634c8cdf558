"""Two nodes with a network of their own each, joined by a switch that this process stands at. Runs
as root of a network namespace of its own (see test_cluster_partition.py), so nothing is left over.

    node 1 ── eth0 10.70.0.1 ─ port1 ┐
                                     ├ switch 10.70.0.254: here
    node 2 ── eth0 10.70.0.2 ─ port2 ┘
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from typing import Self

HERE = "10.70.0.254"
NODES = (1, 2)
_READY_SECONDS = 10.0


def address(node: int) -> str:
    return f"10.70.0.{node}"


class Networks:
    """A context manager. `cut` silently drops what one node sends to the other; both still reach
    the switch."""

    def __enter__(self) -> Self:
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "add", "switch", "type", "bridge")
        _run("ip", "address", "add", f"{HERE}/24", "dev", "switch")
        _run("ip", "link", "set", "switch", "up")
        self._holders = {node: _new_network() for node in NODES}
        for node, holder in self._holders.items():
            port, pid = f"port{node}", str(holder.pid)
            _run("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", pid)
            _run("ip", "link", "set", port, "master", "switch", "up")
            _run(*self.inside(node), "ip", "link", "set", "lo", "up")
            _run(*self.inside(node), "ip", "address", "add", f"{address(node)}/24", "dev", "eth0")
            _run(*self.inside(node), "ip", "link", "set", "eth0", "up")
        return self

    def __exit__(self, *error: object) -> None:
        for holder in self._holders.values():
            holder.kill()
            holder.wait()

    def inside(self, node: int) -> Sequence[str]:
        """What precedes a command that runs on `node`; it replaces itself by the command."""
        return ("nsenter", f"--net=/proc/{self._holders[node].pid}/ns/net")

    def cut(self) -> None:
        self._isolate("on")

    def heal(self) -> None:
        self._isolate("off")

    def _isolate(self, state: str) -> None:
        for node in NODES:
            _run("bridge", "link", "set", "dev", f"port{node}", "isolated", state)


def _new_network() -> subprocess.Popen[bytes]:
    """A process that keeps an empty network namespace alive."""
    holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"], stdin=subprocess.DEVNULL)
    deadline = time.monotonic() + _READY_SECONDS
    mine = os.readlink("/proc/self/ns/net")
    while os.readlink(f"/proc/{holder.pid}/ns/net") == mine:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return holder


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=_READY_SECONDS)

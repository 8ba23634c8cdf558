"""Hosts of one network, as network namespaces of this machine.

    host a ── veth ──┐
    host b ── veth ──┼── bridge, in a namespace of its own
    host c ── veth ──┘

Addresses exist inside the namespaces only. Needs root and iproute2; what a machine lacks for it,
lacking.py tells.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
HOSTS = ("a", "b", "c")
COMMAND_SECONDS = 20
CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)
_numbers = itertools.count()


class Network:
    """Made whole; `close` ends it once every process inside has ended."""

    def __init__(self) -> None:
        self._prefix = f"mt-{os.getpid()}-{next(_numbers)}"
        self._made: list[str] = []
        try:
            self._build()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        with ExitStack() as stack:
            while self._made:
                stack.callback(_run, "ip", "netns", "delete", self._made.pop())

    def namespace(self, host: str) -> str:
        return f"{self._prefix}-{host}"

    def address(self, host: str) -> str:
        return f"10.231.0.{HOSTS.index(host) + 1}"

    def command(self, host: str, *command: str) -> list[str]:
        """What runs `command` on the host, as one process: its id is the command's."""
        return ["ip", "netns", "exec", self.namespace(host), *command]

    def run_on(self, host: str, act: Callable[[], T]) -> T:
        """In this process, on a thread whose sockets are the host's."""
        with ThreadPoolExecutor(1, initializer=self._enter, initargs=(host,)) as thread:
            return thread.submit(act).result()

    # -- what befalls it --------------------------------------------------------------

    def cut(self, host: str) -> None:
        """Everything to and from the host is lost without a word."""
        self._hub("link", "set", _port(host), "nomaster")

    def heal(self, host: str) -> None:
        """After `cut`, `throttle` or both."""
        for where, device in self._ends(host):
            subprocess.run(
                ["tc", "-n", where, "qdisc", "delete", "dev", device, "root"],
                capture_output=True,  # there may be none
                timeout=COMMAND_SECONDS,
                check=False,
            )
        self._hub("link", "set", _port(host), "master", "br0")

    def throttle(self, host: str, rate: str) -> None:
        """To and from the host, e.g. "4mbit"."""
        for where, device in self._ends(host):
            _run(
                *("tc", "-n", where, "qdisc", "replace", "dev", device, "root"),
                *("tbf", "rate", rate, "burst", "64kbit", "latency", "200ms"),
            )

    # -- internal ---------------------------------------------------------------------

    def _build(self) -> None:
        for name in ("hub", *HOSTS):
            _run("ip", "netns", "add", self.namespace(name))
            self._made.append(self.namespace(name))
        self._hub("link", "add", "br0", "type", "bridge")
        self._hub("link", "set", "br0", "up")
        for host in HOSTS:
            there = self.namespace(host)
            end = ("type", "veth", "peer", "name", "eth0", "netns", there)
            self._hub("link", "add", "name", _port(host), *end)
            self._hub("link", "set", _port(host), "master", "br0", "up")
            _run("ip", "-n", there, "address", "add", f"{self.address(host)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _run("ip", "-n", there, "link", "set", device, "up")

    def _hub(self, *words: str) -> None:
        _run("ip", "-n", self.namespace("hub"), *words)

    def _ends(self, host: str) -> tuple[tuple[str, str], tuple[str, str]]:
        return (self.namespace("hub"), _port(host)), (self.namespace(host), "eth0")

    def _enter(self, host: str) -> None:
        descriptor = os.open(Path("/run/netns") / self.namespace(host), os.O_RDONLY)
        try:
            if _libc.setns(descriptor, CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
        finally:
            os.close(descriptor)


def _port(host: str) -> str:
    """The bridge's end of its cable."""
    return f"to-{host}"


def _run(*command: str) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
    )
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")

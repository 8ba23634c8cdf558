"""A machine as its files and limits show it."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from moontide.transfer import MemoryBound, available_memory
from moontide.transfer.rdma import Port, rdma_ports
from moontide.transfer.topology import Topology, ipv4_address, read_topology

from ..daemon.needs import existing_parent

UNLIMITED = resource.RLIM_INFINITY


class Limit(NamedTuple):
    """A resource limit; UNLIMITED is -1."""

    soft: int
    hard: int


class FileSystem(NamedTuple):
    """`folder`: what was asked about, or its nearest parent that exists."""

    folder: Path
    total_bytes: int
    free_bytes: int


class Host(Protocol):
    """Reading changes nothing. What is missing or forbidden is empty."""

    def text(self, path: str) -> str: ...
    def names(self, path: str) -> list[str]: ...
    def memory(self) -> MemoryBound: ...
    def rdma_ports(self) -> list[Port]: ...
    def topology(self) -> Topology: ...
    def ipv4_address(self, card: str) -> str: ...
    def file_system(self, path: Path) -> FileSystem: ...
    def limit(self, which: int) -> Limit: ...
    def num_processors(self) -> int: ...


@dataclass(frozen=True, slots=True)
class LocalHost:
    """This machine."""

    root: Path = Path("/")

    def text(self, path: str) -> str:
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""

    def names(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(self.root / path))
        except OSError:
            return []

    def memory(self) -> MemoryBound:
        return available_memory(self.root)

    def rdma_ports(self) -> list[Port]:
        return rdma_ports(self.root)

    def topology(self) -> Topology:
        return read_topology(self.root)

    def ipv4_address(self, card: str) -> str:
        return ipv4_address(card)

    def file_system(self, path: Path) -> FileSystem:
        folder = existing_parent(path)
        facts = os.statvfs(folder)
        return FileSystem(folder, facts.f_blocks * facts.f_frsize, facts.f_bavail * facts.f_frsize)

    def limit(self, which: int) -> Limit:
        return Limit(*resource.getrlimit(which))

    def num_processors(self) -> int:
        return len(os.sched_getaffinity(0))

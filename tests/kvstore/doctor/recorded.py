"""Machines as they were recorded: files, limits, and what trials on them gave."""

from __future__ import annotations

import resource
from dataclasses import dataclass, field
from pathlib import Path

from moontide.kvstore.daemon.settings import StoreSettings
from moontide.kvstore.doctor.checks import examine
from moontide.kvstore.doctor.cuda import Cuda
from moontide.kvstore.doctor.host import FileSystem, Limit, LocalHost
from moontide.kvstore.doctor.trials import DiskSpeed
from moontide.kvstore.doctor.types import Case, Finding
from moontide.kvstore.service import HostPort

GIB = 1 << 30
FAST = DiskSpeed(2.5e9, 3.0e9, 256 << 20, "")

BARE = {"proc/meminfo": "MemTotal: 67108864 kB\nMemAvailable: 62914560 kB\nSwapTotal: 0 kB\n"}
BARE["proc/self/cgroup"] = "0::/\n"
BARE["proc/self/mountinfo"] = "27 1 259:1 / / rw,relatime - ext4 /dev/nvme0n1p1 rw\n"


@dataclass(frozen=True, slots=True)
class RecordedHost(LocalHost):
    """Files below `root`; the rest as given."""

    total_bytes: int = 1000 * GIB
    free_bytes: int = 900 * GIB
    limits: dict[int, Limit] = field(default_factory=dict)
    processors: int = 16
    addresses: dict[str, str] = field(default_factory=dict)  # of network cards

    def file_system(self, path: Path) -> FileSystem:
        return FileSystem(path, self.total_bytes, self.free_bytes)

    def limit(self, which: int) -> Limit:
        return self.limits.get(which, Limit(1 << 30, 1 << 30))

    def ipv4_address(self, card: str) -> str:
        return self.addresses.get(card, "")

    def num_processors(self) -> int:
        return self.processors


@dataclass(frozen=True, slots=True)
class RecordedTrials:
    """Everything works unless a reason is given; `taken` are addresses in use."""

    why_not_written: str = ""
    speed: DiskSpeed = FAST
    why_not_sealed: str = ""
    why_not_watched: str = ""
    why_no_io_uring: str = ""
    clock: str = ""
    taken: frozenset[str] = frozenset()
    cuda: Cuda = field(default_factory=lambda: Cuda(reason="no libcudart"))

    def write_to(self, folder: Path) -> str:
        return self.why_not_written

    def disk_speed(self, folder: Path, num_bytes: int) -> DiskSpeed:
        return self.speed

    def seal_memory(self) -> str:
        return self.why_not_sealed

    def watch_process(self) -> str:
        return self.why_not_watched

    def set_up_io_uring(self) -> str:
        return self.why_no_io_uring

    def listen(self, address: HostPort) -> str:
        return f"cannot listen on {address}: taken" if str(address) in self.taken else ""

    def read_clock(self) -> str:
        return self.clock

    def find_cuda(self) -> Cuda:
        return self.cuda


def record(root: Path, files: dict[str, str]) -> Path:
    for name, text in {**BARE, **files}.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def findings(
    host: RecordedHost, settings: StoreSettings, trials: RecordedTrials | None = None
) -> dict[str, Finding]:
    """By check; each check says a thing once."""
    found = list(examine(Case(host, trials or RecordedTrials(), settings)))
    by_name = {finding.check: finding for finding in found}
    assert len(by_name) == len(found)
    return by_name


MEMLOCK, NOFILE = resource.RLIMIT_MEMLOCK, resource.RLIMIT_NOFILE

"""Every check, in the order of the report. A new one adds a line."""

from __future__ import annotations

from collections.abc import Iterator

from ..types import Case, Check, Finding
from .clocks import Clocks
from .cuda import CudaCheck
from .disk import DataDirectory, DiskSpace, DiskSpeedCheck
from .kernel import Kernel, Versions
from .memory import HugePages, LockedMemory, Memory, SharedMemory, Swap
from .network import Ports, Rdma, SocketPath
from .processes import OpenFiles, Processors
from .tls import TlsCertificate
from .topology import Cards, Numa

CHECKS: tuple[Check, ...] = (
    Memory(),
    Swap(),
    HugePages(),
    SharedMemory(),
    LockedMemory(),
    DataDirectory(),
    DiskSpace(),
    DiskSpeedCheck(),
    OpenFiles(),
    Processors(),
    Numa(),
    Cards(),
    SocketPath(),
    Ports(),
    TlsCertificate(),
    Rdma(),
    CudaCheck(),
    Clocks(),
    Kernel(),
    Versions(),
)


def examine(case: Case) -> Iterator[Finding]:
    for check in CHECKS:
        yield from check.examine(case)

"""How much memory this process may still take: the machine's, its cgroups', its own limit."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_ROOT = Path("/")
_UNLIMITED = 1 << 60


class MemoryBound(NamedTuple):
    available_bytes: int
    source: str  # for messages: what sets the bound


def available_memory(root: Path = _ROOT) -> MemoryBound:
    """The tightest of MemAvailable and the memory cgroups (v1 or v2) this process is in; `root`
    holds proc and sys."""
    bounds = [MemoryBound(_mem_available(root), "MemAvailable of this machine")]
    bounds += [
        MemoryBound(room, f"memory limit of cgroup {group}") for group, room in _cgroup_rooms(root)
    ]
    return min(bounds)


def available_address_space() -> MemoryBound | None:
    """What RLIMIT_AS leaves, or None when it is unlimited."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return MemoryBound(max(limit - pages * resource.getpagesize(), 0), "RLIMIT_AS (ulimit -v)")


def _mem_available(root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return _UNLIMITED


def _cgroup_rooms(root: Path) -> Iterator[tuple[str, int]]:
    """(group, bytes left) of each memory cgroup above this process that has a limit."""
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mount, limit_file, usage_file = root / "sys/fs/cgroup", "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            mount = root / "sys/fs/cgroup/memory"
            limit_file, usage_file = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        group = Path(path.lstrip("/"))
        for folder in (group, *group.parents):
            room = _room(mount / folder, limit_file, usage_file)
            if room is not None:
                yield f"/{folder}", room


def _room(folder: Path, limit_file: str, usage_file: str) -> int | None:
    """None when the group is not visible here or has no limit. Inactive file pages count as
    free: the kernel drops them before it kills."""
    try:
        limit_text = (folder / limit_file).read_text().strip()
        usage = int((folder / usage_file).read_text())
        stat = (folder / "memory.stat").read_text().split()
    except OSError:
        return None
    if limit_text == "max" or int(limit_text) >= _UNLIMITED:
        return None
    values = dict(zip(stat[::2], stat[1::2], strict=False))
    reclaimable = int(values.get("total_inactive_file", values.get("inactive_file", "0")))
    return max(int(limit_text) - usage + reclaimable, 0)

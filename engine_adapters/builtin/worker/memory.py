"""Whether this machine has the memory a KV pool asks for."""

from __future__ import annotations

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def available_bytes(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int:
    """Memory this process may still take: the machine's or its control group's, whichever is
    less."""
    available = _machine_bytes(meminfo)
    limit, used = _read(cgroup / "memory.max"), _read(cgroup / "memory.current")
    if limit is not None and used is not None:
        available = min(available, max(0, limit - used))
    return available


def _machine_bytes(meminfo: Path) -> int:
    for line in meminfo.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) << 10
    raise OSError(f"{meminfo} does not tell MemAvailable")


def _read(path: Path) -> int | None:
    """None: no limit, or no control group."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None

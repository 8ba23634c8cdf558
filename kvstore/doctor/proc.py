"""Parsers of what /proc and /sys say. Pure; text they do not understand gives nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import NamedTuple


class Mount(NamedTuple):
    point: str
    kind: str  # ext4, xfs, nfs4, overlay, tmpfs, …
    source: str


def mount_of(mountinfo: str, path: PurePath) -> Mount | None:
    """The mount that `path` (absolute) lies on; of several on one point, the last."""
    best: Mount | None = None
    for mount in _mounts(mountinfo):
        is_above = PurePath(mount.point) in (path, *path.parents)
        if is_above and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def _mounts(mountinfo: str) -> Iterator[Mount]:
    for line in mountinfo.splitlines():
        head, separator, tail = line.partition(" - ")
        fields, rest = head.split(), tail.split()
        if separator and len(fields) >= 5 and len(rest) >= 2:
            yield Mount(_unescape(fields[4]), rest[0], rest[1])


def _unescape(text: str) -> str:
    """Spaces and the like, which the kernel writes as octal."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text


def memory_sizes(meminfo: str) -> dict[str, int]:
    """Bytes by name, of the rows that are in kB."""
    rows = (line.split() for line in meminfo.splitlines())
    return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if row[2:] == ["kB"]}


def chosen(text: str) -> str:
    """`madvise` of `always [madvise] never`."""
    return next((word[1:-1] for word in text.split() if word.startswith("[")), text)


def cgroup_path(cgroups: str, controller: str) -> tuple[str, str]:
    """(version, path) of this process's group for a controller; version is "v1", "v2" or empty."""
    unified = ""
    for line in cgroups.splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return "v1", path
        if not controllers:
            unified = path
    return ("v2", unified) if unified else ("", "")


def processor_quota(text: str, period: str = "") -> float | None:
    """Processors' worth of time; None: unlimited. `text` is cpu.max, or cpu.cfs_quota_us beside
    cpu.cfs_period_us."""
    fields = [*text.split(), *period.split()]
    if len(fields) < 2 or not fields[0].isdigit() or not fields[1].isdigit():
        return None
    return int(fields[0]) / int(fields[1]) if int(fields[1]) else None


def time_offsets(text: str) -> dict[str, int]:
    """Seconds that a time namespace adds to each clock."""
    rows = (line.split() for line in text.splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 3}

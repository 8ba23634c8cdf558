"""The data directory: what it lies on, how much room there is, how fast it is."""

from __future__ import annotations

from collections.abc import Iterator

from ...daemon.needs import existing_parent, floor_of, needs_of, used_bytes
from ...service import human_size
from ..proc import Mount, mount_of
from ..types import Case, Finding, Status

NETWORK_KINDS = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "glusterfs"})
"""Locks and memory maps of these do not hold what LMDB needs."""
MEMORY_KINDS = frozenset({"tmpfs", "ramfs"})
LAYERED_KINDS = frozenset({"overlay", "aufs", "fuse-overlayfs"})
MEASURED_BYTES = 256 << 20
LEAST_BYTES_A_SECOND = 500e6
"""Slower, and recomputing a block of a small model beats reading it."""


class DataDirectory:
    """Its file system, and whether this user may write there."""

    def examine(self, case: Case) -> Iterator[Finding]:
        folder = existing_parent(case.store.data_dir)
        mount = mount_of(case.host.text("proc/self/mountinfo"), folder)
        shown = f"{mount.kind} at {mount.point}" if mount else "unknown"
        yield self._judge(f"{folder} on {shown}", mount)
        if refusal := case.trials.write_to(folder):
            fix = f"let this user write to {folder}, or give another --data-dir"
            yield Finding("data dir", refusal, "writable", Status.FAIL, fix)

    def _judge(self, value: str, mount: Mount | None) -> Finding:
        needed = "a local file system with O_DIRECT (ext4, xfs)"
        kind = mount.kind if mount else ""
        if kind in NETWORK_KINDS or kind.startswith("fuse.sshfs"):
            fix = "the index and the lock need a local disk: give another --data-dir"
            return Finding("file system", value, needed, Status.FAIL, fix)
        if kind in MEMORY_KINDS:
            fix = "an NVMe tier there takes memory and survives nothing: use a disk"
            return Finding("file system", value, needed, Status.WARN, fix)
        if kind in LAYERED_KINDS:
            fix = "the container's own layer is slow and ends with it: mount a volume"
            return Finding("file system", value, needed, Status.WARN, fix)
        return Finding("file system", value, needed)


class DiskSpace:
    """The NVMe tier as a whole, index included, above the floor it leaves free."""

    def examine(self, case: Case) -> Iterator[Finding]:
        space = case.host.file_system(case.store.data_dir)
        value = f"{human_size(space.free_bytes)} free of {human_size(space.total_bytes)}"
        wanted = needs_of(case.store).disk_bytes
        if not wanted:
            yield Finding("disk space", value, "none: no --nvme")
            return
        tier = case.store.nvme_settings()
        own, floor = used_bytes(tier.directory), floor_of(tier, space.total_bytes)
        needed = f"{case.store.nvme}, and {human_size(floor)} that stay free"
        if space.free_bytes + own - floor < wanted:
            fix = "lower --nvme, free space or give another --data-dir"
            yield Finding("disk space", value, needed, Status.FAIL, fix)
        else:
            yield Finding("disk space", value, needed)


class DiskSpeedCheck:
    """Measured with a nameless file of at most MEASURED_BYTES, a tenth of what is free."""

    def examine(self, case: Case) -> Iterator[Finding]:
        space = case.host.file_system(case.store.data_dir)
        size = min(MEASURED_BYTES, space.free_bytes // 10)
        try:
            speed = case.trials.disk_speed(space.folder, size)
        except OSError as error:
            reason = error.strerror or str(error)
            fix = f"let this user write to {space.folder}, or give another --data-dir"
            yield Finding("disk speed", reason, "measured", Status.WARN, fix)
            return
        if speed.why_not:
            fix = "the page cache is used instead, and told to let go; prefer ext4 or xfs"
            yield Finding("direct I/O", speed.why_not, "O_DIRECT", Status.WARN, fix)
        else:
            yield Finding("direct I/O", "O_DIRECT works", "O_DIRECT")
        value = f"{_rate(speed.written)} written, {_rate(speed.read)} read, one request at a time"
        needed = f"{_rate(LEAST_BYTES_A_SECOND)} for an NVMe tier"
        is_slow = min(speed.written, speed.read) < LEAST_BYTES_A_SECOND
        if is_slow and case.store.nvme:
            fix = "use a faster disk: loads later than --load-seconds are recomputed"
            yield Finding("disk speed", value, needed, Status.WARN, fix)
        else:
            yield Finding("disk speed", value, needed)


def _rate(bytes_a_second: float) -> str:
    return f"{bytes_a_second / 1e9:.2f} GB/s"

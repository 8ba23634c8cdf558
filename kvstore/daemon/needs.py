"""What a store of given settings takes of its machine, and the refusal when it cannot be had.

A start that would fail later (a SIGBUS, a kill by the kernel, a connection that cannot be accepted)
fails at once instead, naming what was asked, what there is, and the fix. `moontide doctor` shows
the same numbers."""

from __future__ import annotations

import logging
import os
import resource
from dataclasses import dataclass
from pathlib import Path

from moontide.transfer import check_memory
from moontide.transfer.errors import SegmentUnavailable

from ..errors import OutOfSpace
from ..nvme import MAX_REGIONS, NvmeSettings
from ..nvme.settings import free_floor_of
from ..service import CommandFailed, Size
from .settings import StoreSettings

logger = logging.getLogger(__name__)

DESCRIPTORS_PER_CLIENT = 2
"""Its socket, and the pidfd that tells its process's end."""
DESCRIPTORS_PER_SEGMENT = 3
"""The memfd, the read-only one that is handed over, and the mapping's own."""
SPARE_DESCRIPTORS = 256
"""Listeners, index, admin connections, peers, libraries."""
SEE_DOCTOR = "`moontide doctor` shows what this machine has"


@dataclass(frozen=True, slots=True)
class Needs:
    """`memory_bytes`: the pool and its full catalog."""

    memory_bytes: int
    disk_bytes: int
    descriptors: int


def needs_of(settings: StoreSettings) -> Needs:
    """Raises InvalidRequest for a pool that cannot be."""
    pool = settings.pool_settings()
    regions = MAX_REGIONS if settings.nvme else 0
    return Needs(
        memory_bytes=pool.memory_bytes,
        disk_bytes=int(settings.nvme),
        descriptors=DESCRIPTORS_PER_CLIENT * settings.max_clients
        + DESCRIPTORS_PER_SEGMENT * pool.num_segments
        + regions
        + SPARE_DESCRIPTORS,
    )


class TooFewDescriptors(CommandFailed):
    """The hard limit on open files is below what the settings may need."""


def check_needs(settings: StoreSettings) -> None:
    """Raises InvalidRequest, OutOfSpace or TooFewDescriptors; lifts the soft limit on open
    files."""
    needs = needs_of(settings)
    pool = f"a DRAM tier of {int(settings.dram)} bytes (--dram) and {settings.pool_entries} entries"
    try:
        check_memory(needs.memory_bytes, pool)
    except SegmentUnavailable as error:
        raise OutOfSpace(f"{error}; {SEE_DOCTOR}") from error
    raise_descriptor_limit(needs.descriptors)
    check_disk(settings)


def raise_descriptor_limit(needed: int) -> None:
    """Lifts the soft limit on open files to `needed`. Raises TooFewDescriptors when the hard one is
    lower and cannot be lifted either."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise TooFewDescriptors(
            f"{needed} open files may be needed; {hard} are allowed (ulimit -Hn): raise that "
            f"(LimitNOFILE= in systemd), lower --max-clients or give a larger --segment; "
            f"{SEE_DOCTOR}"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def check_disk(settings: StoreSettings) -> None:
    """Raises OutOfSpace when the NVMe tier is larger than its file system less the floor, or, as
    long as there is no tier yet, than what is free there. One that exists starts with what it gets:
    its entries count more than its size."""
    if not settings.nvme:
        return
    tier = settings.nvme_settings()
    folder = existing_parent(tier.directory)
    facts = os.statvfs(folder)
    total = facts.f_blocks * facts.f_frsize
    free = facts.f_bavail * facts.f_frsize
    floor = floor_of(tier, total)
    is_new = not tier.directory.exists()
    available = max(0, (free if is_new else total) - floor)
    if tier.capacity_bytes > available:
        raise OutOfSpace(
            f"--nvme asks for {settings.nvme} ({tier.capacity_bytes} bytes) in {folder}; "
            f"{available} bytes are available there (the file system has {total}, {free} are free, "
            f"{floor} stay free): lower --nvme, free space or give another --data-dir; "
            f"{SEE_DOCTOR}"
        )
    if free + used_bytes(tier.directory) - floor < tier.capacity_bytes:
        logger.warning(
            "nvme_stays_smaller asked=%s free_bytes=%d floor_bytes=%d",
            Size(tier.capacity_bytes),
            free,
            floor,
        )


def floor_of(tier: NvmeSettings, file_system_bytes: int) -> int:
    """What the tier leaves free of a file system of this size."""
    if tier.free_floor_bytes is not None:
        return tier.free_floor_bytes
    return free_floor_of(file_system_bytes)


def existing_parent(path: Path) -> Path:
    """`path` in full, or the nearest of its parents that can be seen to be a directory."""
    full = path.absolute().resolve()
    return next(folder for folder in (full, *full.parents) if os.path.isdir(folder))


def used_bytes(folder: Path) -> int:
    """Of the files below a folder, on the disk; 0 when there is none."""
    return sum(
        (Path(parent) / name).lstat().st_blocks * 512
        for parent, _, names in os.walk(folder)
        for name in names
    )

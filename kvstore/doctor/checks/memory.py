"""Memory: enough of it, and of the kind a pool in shared memory wants."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

from ...daemon.needs import needs_of
from ...nvme import MAX_LOCKED_BYTES
from ...service import human_size
from ..host import UNLIMITED
from ..proc import chosen, memory_sizes
from ..types import Case, Finding, Status

COMFORTABLE_RATIO = 0.9
"""Of what is available; beyond, the first other program in need meets the kernel's killer."""
WITHHOLDING = ("never", "deny")
"""Settings with which shared memory gets no huge pages, asked or not."""
HUGE_PAGES_NEEDED = "shared memory: advise"
_THP = "sys/kernel/mm/transparent_hugepage"
_HUGE_PAGES = "sys/kernel/mm/hugepages"


class Memory:
    """What the pool and its catalog take, against machine and cgroups."""

    def examine(self, case: Case) -> Iterator[Finding]:
        room, needed = case.host.memory(), needs_of(case.store).memory_bytes
        value = f"{human_size(room.available_bytes)} available ({room.source})"
        asked = f"{human_size(needed)}: the pool of {case.store.dram} and its catalog"
        if needed > room.available_bytes:
            fix = "lower --dram, free memory, or raise the limit named"
            yield Finding("memory", value, asked, Status.FAIL, fix)
        elif needed > COMFORTABLE_RATIO * room.available_bytes:
            fix = "leave a tenth for everything else: lower --dram"
            yield Finding("memory", value, asked, Status.WARN, fix)
        else:
            yield Finding("memory", value, asked)


class Swap:
    """Pages of the pool that were swapped out cost a disk read a get."""

    def examine(self, case: Case) -> Iterator[Finding]:
        sizes = memory_sizes(case.host.text("proc/meminfo"))
        total = sizes.get("SwapTotal", 0)
        if not total:
            yield Finding("swap", "off", "off")
            return
        swappiness = case.host.text("proc/sys/vm/swappiness")
        value = f"{human_size(total)}, swappiness {swappiness or 'unknown'}"
        fix = "swapoff -a, or memory.swap.max=0 (MemorySwapMax=0 in systemd) for the store"
        yield Finding("swap", value, "off for the store", Status.WARN, fix)


class HugePages:
    """The pool takes transparent ones where the kernel gives them to shared memory that asks."""

    def examine(self, case: Case) -> Iterator[Finding]:
        pages = [
            f"{name.removeprefix('hugepages-')}: {self._count(case, name)}"
            for name in case.host.names(_HUGE_PAGES)
        ]
        yield Finding("hugepages", ", ".join(pages) or "none", "none: the pool reserves no such")
        shared = chosen(case.host.text(f"{_THP}/shmem_enabled"))
        enabled = chosen(case.host.text(f"{_THP}/enabled"))
        value = f"{enabled or 'not there'}; shared memory: {shared or 'not there'}"
        if shared not in WITHHOLDING:
            yield Finding("transparent hugepages", value, HUGE_PAGES_NEEDED)
        else:
            fix = f"echo advise > /{_THP}/shmem_enabled: new clients then map the pool at once"
            yield Finding("transparent hugepages", value, HUGE_PAGES_NEEDED, Status.WARN, fix)

    def _count(self, case: Case, name: str) -> str:
        free = case.host.text(f"{_HUGE_PAGES}/{name}/free_hugepages") or "?"
        total = case.host.text(f"{_HUGE_PAGES}/{name}/nr_hugepages") or "?"
        return f"{free} free of {total}"


class SharedMemory:
    """The pool lies in sealed memfds, not in /dev/shm; a small /dev/shm is no obstacle."""

    def examine(self, case: Case) -> Iterator[Finding]:
        if refusal := case.trials.seal_memory():
            fix = "allow memfd_create and F_ADD_SEALS (Linux 3.17, the container's seccomp profile)"
            yield Finding("sealed memory", refusal, "sealed memfds", Status.FAIL, fix)
        else:
            yield Finding("sealed memory", "memfds can be sealed", "sealed memfds")
        size = case.host.file_system(Path("/dev/shm")).total_bytes
        yield Finding("/dev/shm", human_size(size), "any: the pool is not there")


class LockedMemory:
    """Registering memory for RDMA pins it: all of the pool. The disk's index is locked so that no
    look-up waits for a disk that hangs."""

    def examine(self, case: Case) -> Iterator[Finding]:
        limit = case.host.limit(resource.RLIMIT_MEMLOCK)
        value = f"{_shown(limit.soft)} (hard {_shown(limit.hard)})"
        wanted = dict(_locked(case))
        if not wanted:
            yield Finding("memlock", value, "any: no RDMA port is active, no --nvme")
            return
        needed = sum(wanted.values())
        asked = ", ".join(f"{human_size(size)} {purpose}" for purpose, size in wanted.items())
        if limit.soft == UNLIMITED or limit.soft >= needed:
            yield Finding("memlock", value, asked)
        else:
            fix = "ulimit -l unlimited, LimitMEMLOCK=infinity, or docker --ulimit memlock=-1"
            yield Finding("memlock", value, asked, Status.WARN, fix)


def _locked(case: Case) -> Iterator[tuple[str, int]]:
    """What for, and bytes."""
    if any(port.is_active for port in case.host.rdma_ports()):
        yield "to register the pool for RDMA", int(case.store.dram)
    if case.store.nvme:
        index_bytes = case.store.nvme_settings().index_map_bytes
        yield "for the index of the disk", min(index_bytes, MAX_LOCKED_BYTES)


def _shown(number: int) -> str:
    return "unlimited" if number == UNLIMITED else human_size(number)

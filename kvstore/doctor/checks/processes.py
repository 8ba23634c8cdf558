"""What one process may have: open files and processors."""

from __future__ import annotations

import resource
from collections.abc import Iterator

from ...daemon.needs import needs_of
from ..host import UNLIMITED
from ..proc import cgroup_path, processor_quota
from ..types import Case, Finding, Status

LEAST_PROCESSORS = 2
"""One for the loop, one for checksums and the disk."""
_GOVERNOR = "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"


class OpenFiles:
    """The store lifts its soft limit as far as it needs; the hard one is what counts."""

    def examine(self, case: Case) -> Iterator[Finding]:
        limit = case.host.limit(resource.RLIMIT_NOFILE)
        needed = needs_of(case.store).descriptors
        hard = "unlimited" if limit.hard == UNLIMITED else str(limit.hard)
        asked = f"{needed}: {case.store.max_clients} clients, segments, regions"
        if limit.hard != UNLIMITED and limit.hard < needed:
            fix = "ulimit -Hn or LimitNOFILE=, fewer --max-clients, a larger --segment"
            yield Finding("open files", f"{limit.soft}, hard {hard}", asked, Status.FAIL, fix)
        else:
            yield Finding("open files", f"{limit.soft}, hard {hard}", asked)


class Processors:
    """How many this process may use, by affinity and by its cgroup's quota, and how fast they
    wake."""

    def examine(self, case: Case) -> Iterator[Finding]:
        allowed, quota = case.host.num_processors(), _quota(case)
        usable = allowed if quota is None else min(float(allowed), quota)
        value = f"{allowed}" + ("" if quota is None else f", cgroup quota {quota:g}")
        needed = f"{LEAST_PROCESSORS}, and those of the engine"
        if usable < LEAST_PROCESSORS:
            fix = "raise the quota (cpu.max) or the affinity: copies and the loop share one now"
            yield Finding("processors", value, needed, Status.WARN, fix)
        else:
            yield Finding("processors", value, needed)
        governor = case.host.text(_GOVERNOR)
        if governor in ("powersave", "conservative"):
            fix = "cpupower frequency-set -g performance: round trips wait for sleeping cores"
            yield Finding("governor", governor, "performance", Status.WARN, fix)
        else:
            yield Finding("governor", governor or "not told", "performance")


def _quota(case: Case) -> float | None:
    version, path = cgroup_path(case.host.text("proc/self/cgroup"), "cpu")
    group = path.strip("/")
    if version == "v2":
        return processor_quota(case.host.text(f"sys/fs/cgroup/{group}/cpu.max"))
    for folder in (f"sys/fs/cgroup/cpu/{group}", "sys/fs/cgroup/cpu"):
        quota = case.host.text(f"{folder}/cpu.cfs_quota_us")
        if quota:
            return processor_quota(quota, case.host.text(f"{folder}/cpu.cfs_period_us"))
    return None

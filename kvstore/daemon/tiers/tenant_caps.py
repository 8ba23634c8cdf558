"""Caps of tenants on disk: a tenant over its cap loses what of its blocks was written first.

The index is read in passes, a page at a time, for as long as a cap is set; each pass counts what
the tenants hold and notes the oldest entries of those that have a cap. Between two passes a tenant
may write as much as its cap leaves by the last count; the rest of its blocks stay in DRAM and are
offered again after the next pass. Regions are evicted as ever: what goes with them goes sooner.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from ...nvme import NvmeLocation
from ...store import TenantBytes

PAGE_ENTRIES = 512
MAX_VICTIMS = 8192
"""Of one tenant in one pass."""
CAP_SLACK = 0.05
"""Of a cap that an eviction frees beyond what it must."""

Page = tuple[list[NvmeLocation], bytes]


class _Index(Protocol):
    def page(self, after: bytes, limit: int) -> Page:
        """See `NvmeTier.page`."""


class TenantCaps:
    """Lives in the loop. `tenant_of` a namespace (digest, hex): None while nobody has opened it
    since the start; it is not counted then. `drop` ends entries."""

    def __init__(
        self,
        index: _Index,
        *,
        tenant_of: Callable[[str], str | None],
        drop: Callable[[Sequence[bytes]], None],
        reoffer: Callable[[], None],
    ) -> None:
        self._index = index
        self._tenant_of = tenant_of
        self._drop = drop
        self._reoffer = reoffer
        self._caps = TenantBytes()
        self._after = b""
        self._begin()
        self._used: Counter[str] = Counter()  # bytes, by the last pass
        self._written_before: Counter[str] = Counter()  # during that pass
        self._refused = False

    def set_caps(self, caps: TenantBytes) -> None:
        self._caps = caps
        self._begin()
        self._used.clear()
        self._written_before.clear()
        if self._refused:
            self._refused = False
            self._reoffer()

    def admits(self, namespace: str, num_bytes: int) -> bool:
        """Whether an entry may be written, which counts it then."""
        if not self._caps:
            return True
        tenant = self._tenant_of(namespace)
        cap = self._caps.of(tenant) if tenant is not None else None
        if tenant is None or cap is None:
            return True
        held = self._used[tenant] + self._written_before[tenant] + self._written[tenant]
        if held + num_bytes > cap:
            self._refused = True
            return False
        self._written[tenant] += num_bytes
        return True

    def tick(self) -> None:
        """Every 100 ms: one page."""
        if not self._caps:
            return
        found, self._after = self._index.page(self._after, PAGE_ENTRIES)
        for location in found:
            tenant = self._tenant_of(location.namespace) if location.namespace else None
            if tenant is not None:
                self._counted[tenant] += location.length
                self._note(tenant, location)
        if not self._after:
            self._end_pass()

    def _note(self, tenant: str, location: NvmeLocation) -> None:
        """The MAX_VICTIMS that were written first; the latest of them is on top."""
        if self._caps.of(tenant) is None:
            return
        oldest = self._oldest.setdefault(tenant, [])
        item = (-location.sequence, location.entry, location.length)
        if len(oldest) < MAX_VICTIMS:
            heapq.heappush(oldest, item)
        else:
            heapq.heappushpop(oldest, item)

    def _end_pass(self) -> None:
        for tenant, oldest in self._oldest.items():
            cap = self._caps.of(tenant)
            if cap is not None and self._counted[tenant] + self._written[tenant] > cap:
                self._shrink(tenant, oldest, int(cap * (1 - CAP_SLACK)))
        self._used, self._written_before = self._counted, self._written
        self._begin()
        if self._refused:
            self._refused = False
            self._reoffer()

    def _shrink(self, tenant: str, oldest: list[tuple[int, bytes, int]], target: int) -> None:
        victims = []
        for _, entry, length in sorted(oldest, reverse=True):
            if self._counted[tenant] <= target:
                break
            victims.append(entry)
            self._counted[tenant] -= length
        self._drop(victims)

    def _begin(self) -> None:
        """A pass."""
        self._after = b""
        self._counted: Counter[str] = Counter()
        self._written: Counter[str] = Counter()
        self._oldest: dict[str, list[tuple[int, bytes, int]]] = {}

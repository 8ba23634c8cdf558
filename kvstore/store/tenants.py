"""Tenants: what the namespaces of one salt hold of DRAM, capped and protected.

cap     most bytes a tenant's blocks may occupy. Beyond it, its own coldest go first; a reserve that
        finds nothing of its own to drop is refused.
share   bytes that others' writes leave alone: while a tenant holds no more than that, only its own
        writes, its users and time take its blocks.

Bytes are counted by columns, not entry by entry: a tenant's own when what it reserved since may
have taken it over its cap, and all tenants' every COUNT_SECONDS while shares are in force. An
eviction goes CAP_SLACK further than it must, so that counts stay rare. String entries belong to no
tenant.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..slots import HEAD, LENGTH, SlotState
from .allocator import occupied_bytes, occupied_bytes_of
from .catalog import DEAD
from .entries import Entries
from .namespaces import Namespaces, OpenNamespace

COUNT_SECONDS = 1.0
RECOUNT_SECONDS = 0.05
"""So long a tenant that could not get under its cap is refused without another count."""
CAP_SLACK = 0.05
MAX_LISTED_TENANTS = 1000


@dataclass(frozen=True, slots=True)
class TenantBytes:
    """A number of bytes for each tenant (digest, hex); None: no limit."""

    default: int | None = None
    of_tenant: Mapping[str, int | None] = field(default_factory=dict)

    def of(self, tenant: str) -> int | None:
        return self.of_tenant.get(tenant, self.default)

    def __bool__(self) -> bool:
        return self.default is not None or bool(self.of_tenant)


class TenantUsage(msgspec.Struct, frozen=True):
    """`tenant` is a digest of the salt, which is never shown."""

    tenant: str
    namespaces: list[str]  # digests, hex
    entries: int
    dram_bytes: int
    cap_bytes: int | None
    share_bytes: int | None


class Tenants:
    """`caps` and `shares` may be replaced by `limit` at any time."""

    def __init__(self, entries: Entries, namespaces: Namespaces) -> None:
        self._entries = entries
        self._catalog = entries.catalog
        self._namespaces = namespaces
        self._caps = self._shares = TenantBytes()
        self._counted_at = -math.inf
        self._most: dict[str, int] = {}  # bytes at a tenant's last count and reserved since
        self._over: dict[str, float] = {}  # tenants over their cap → when to count again

    def limit(self, caps: TenantBytes, shares: TenantBytes) -> None:
        self._caps, self._shares = caps, shares
        self._counted_at = -math.inf
        self._most.clear()
        self._over.clear()
        self._catalog.guarded.clear()

    def tick(self, now: float) -> None:
        """Every 100 ms: keeps what is protected up to date."""
        if self._shares and now - self._counted_at >= COUNT_SECONDS:
            self._counted_at = now
            self._guard()

    def renewed(self, namespaces: Iterable[OpenNamespace]) -> None:
        """Nothing of what these held is found any more: what comes now is protected from the first
        block on."""
        for opened in namespaces:
            if self._shares.of(opened.tenant):
                self._catalog.guarded.add(opened.edition)
        self._counted_at = -math.inf  # its other namespaces may hold more than the share

    def make_room(
        self, tenant: str, entries: Sequence[bytes], sizes: Sequence[int], now: float
    ) -> int | None:
        """Before entries of these sizes are reserved: drops what of the tenant is coldest and has
        to go for those that are not here. The bytes it holds, when it would stay over its cap; else
        None."""
        cap = self._caps.of(tenant) if self._caps else None
        if cap is None:
            return None
        here = self._catalog.visible
        wanted = sum(
            [
                occupied_bytes(size)
                for entry, size in zip(entries, sizes, strict=True)
                if entry not in here
            ]
        )
        held = self._most.get(tenant, cap)
        if wanted and held + wanted > cap:
            if wanted > cap or now < self._over.get(tenant, -math.inf):
                return held
            held = self._shrink(tenant, wanted, cap)
            if held + wanted > cap:
                self._most[tenant], self._over[tenant] = held, now + RECOUNT_SECONDS
                return held
        self._most[tenant] = held + wanted
        return None

    def usage(self) -> list[TenantUsage]:
        """Of at most MAX_LISTED_TENANTS, the largest first."""
        tenants = self._by_number()
        entries, num_bytes = self._sums(*self._live())
        found: dict[str, list[int]] = {}
        for number, tenant in enumerate(tenants):
            if tenant:
                found.setdefault(tenant, []).append(number)
        listed = [
            TenantUsage(
                tenant,
                sorted({self._namespaces.hex_digest(number) for number in numbers}),
                int(entries[numbers].sum()),
                int(num_bytes[numbers].sum()),
                self._caps.of(tenant),
                self._shares.of(tenant),
            )
            for tenant, numbers in found.items()
        ]
        listed.sort(key=lambda usage: -usage.dram_bytes)
        return listed[:MAX_LISTED_TENANTS]

    def _guard(self) -> None:
        """What of all tenants holds no more than its share; what is retired, nobody finds."""
        retired = self._catalog.retired
        tenants = [
            (number, tenant)
            for number, tenant in enumerate(self._by_number())
            if tenant and number not in retired
        ]
        _, num_bytes = self._sums(*self._live())
        used: dict[str, int] = {}
        for number, tenant in tenants:
            used[tenant] = used.get(tenant, 0) + int(num_bytes[number])
        self._catalog.guarded.clear()
        self._catalog.guarded.update(
            number for number, tenant in tenants if used[tenant] <= (self._shares.of(tenant) or -1)
        )

    def _shrink(self, tenant: str, wanted: int, cap: int) -> int:
        """Drops the coldest unpinned blocks of the tenant, if it must for `wanted` bytes more; what
        it holds then."""
        catalog = self._catalog
        slots, taken = self._live(tenant)
        held = int(taken.sum())
        excess = held + wanted - cap
        if excess <= 0:
            return held
        pinned = np.frombuffer(catalog.pins, np.uint32)[slots] > 0
        states = catalog.table.rows()[slots, HEAD] & 0xFF
        flags = np.frombuffer(catalog.flags, np.uint8)[slots]
        may_go = ~pinned & (states == SlotState.COMMITTED) & (flags & DEAD == 0)
        slots, taken = slots[may_go], taken[may_go]
        touched = np.frombuffer(catalog.touched, np.uint32)[slots]
        order = np.lexsort((-slots, touched))  # of one tick, the ends of chains first
        sums = np.cumsum(taken[order])
        count = min(int(np.searchsorted(sums, excess + int(CAP_SLACK * cap))) + 1, len(order))
        if not count:
            return held
        self._entries.evict(slots[order[:count]].tolist())
        self._entries.announce_evictions()
        return held - int(sums[count - 1])

    def _live(self, tenant: str | None = None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Slots that blocks of a tenant, or of any, are in, and the bytes that each occupies."""
        wanted = [owner if tenant is None else owner == tenant for owner in self._by_number()]
        numbers = np.frombuffer(self._catalog.namespaces, np.uint16)
        slots = np.flatnonzero(np.array(wanted, np.bool_)[numbers])
        rows = self._catalog.table.rows()
        slots = slots[rows[slots, HEAD] & 0xFF != SlotState.FREE]
        return slots, occupied_bytes_of(rows[slots, LENGTH].astype(np.int64))

    def _sums(
        self, slots: NDArray[np.int64], taken: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Entries and bytes by namespace number."""
        numbers = np.frombuffer(self._catalog.namespaces, np.uint16)[slots]
        count = len(self._by_number())
        entries = np.bincount(numbers, minlength=count)
        num_bytes = np.bincount(numbers, weights=taken, minlength=count)
        return entries.astype(np.int64), num_bytes.astype(np.int64)

    def _by_number(self) -> list[str]:
        """Tenant of each namespace number; "" for the string entries', which have several."""
        return ["", *self._namespaces.tenants()]

"""Which address of an RDMA port to use, from the table the kernel shows.

A port has many GIDs and most of them lead nowhere: entries of version 1 do not cross a router,
link-local ones do not leave the link. The first one in the table is usually the worst.
"""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass


class Kind(enum.IntEnum):
    """How packets travel. Larger is better: version 2 is UDP and goes where IP goes."""

    ROCE_V1 = 1
    INFINIBAND = 2
    ROCE_V2 = 3


class Scope(enum.IntEnum):
    """How far the address reaches. Larger is better; IPv4 before IPv6, as fabrics are set up."""

    LINK_LOCAL = 1
    PRIVATE_IPV6 = 2
    GLOBAL_IPV6 = 3
    IPV4 = 4


@dataclass(frozen=True, slots=True)
class Gid:
    """One row of a port's table; `netdev` is empty where the kernel names none."""

    index: int
    address: ipaddress.IPv6Address
    kind: Kind
    netdev: str = ""

    @property
    def scope(self) -> Scope:
        if self.address.ipv4_mapped is not None:
            is_local = self.address.ipv4_mapped.is_link_local
            return Scope.LINK_LOCAL if is_local else Scope.IPV4
        if self.address.is_link_local:
            return Scope.LINK_LOCAL
        is_private = self.address in _UNIQUE_LOCAL
        return Scope.PRIVATE_IPV6 if is_private else Scope.GLOBAL_IPV6

    @property
    def is_routable(self) -> bool:
        """Beyond the link. InfiniBand's own subnets are joined by their manager, whatever the
        prefix."""
        if self.kind is Kind.INFINIBAND:
            return True
        return self.kind is Kind.ROCE_V2 and self.scope is not Scope.LINK_LOCAL

    def __str__(self) -> str:
        shown = self.address.ipv4_mapped or self.address
        return f"{self.index}: {shown} ({_KIND_NAMES[self.kind]})"


@dataclass(frozen=True, slots=True)
class RankedGid:
    gid: Gid
    reason: str


_UNIQUE_LOCAL = ipaddress.IPv6Network("fc00::/7")
_KIND_NAMES = {Kind.ROCE_V1: "RoCE v1", Kind.ROCE_V2: "RoCE v2", Kind.INFINIBAND: "InfiniBand"}
_SCOPE_NAMES = {
    Scope.LINK_LOCAL: "link-local",
    Scope.PRIVATE_IPV6: "unique-local IPv6",
    Scope.GLOBAL_IPV6: "global IPv6",
    Scope.IPV4: "IPv4",
}


def parse_gid(
    index: int, address: str, kind: str, *, link_layer: str, netdev: str = ""
) -> Gid | None:
    """A row as sysfs writes it; None for one that is empty or not understood."""
    try:
        parsed = ipaddress.IPv6Address(address.strip())
    except ValueError:
        return None
    if not int(parsed) or not int(parsed) & 0xFFFFFFFFFFFFFFFF:
        return None  # unused: zeros, or the subnet prefix alone
    if "RoCE v2" in kind:
        return Gid(index, parsed, Kind.ROCE_V2, netdev)
    is_infiniband = link_layer.strip() == "InfiniBand"
    return Gid(index, parsed, Kind.INFINIBAND if is_infiniband else Kind.ROCE_V1, netdev)


def rank_gids(gids: Iterable[Gid]) -> list[RankedGid]:
    """Best first: what leaves the link, then the better kind, then the wider scope, then the lower
    index."""
    ordered = sorted(gids, key=lambda g: (-g.is_routable, -g.kind, -g.scope, g.index))
    return [RankedGid(gid, _reason(gid)) for gid in ordered]


def best_gid(gids: Iterable[Gid], *, forced_index: int | None = None) -> RankedGid | None:
    """The one to use; None when there is none. `forced_index` names a row by its index."""
    ranked = rank_gids(gids)
    if forced_index is None:
        return ranked[0] if ranked else None
    found = next((one for one in ranked if one.gid.index == forced_index), None)
    return RankedGid(found.gid, "asked for") if found else None


def _reason(gid: Gid) -> str:
    reach = "routable" if gid.is_routable else "only on its link"
    return f"{_KIND_NAMES[gid.kind]}, {_SCOPE_NAMES[gid.scope]}, {reach}"

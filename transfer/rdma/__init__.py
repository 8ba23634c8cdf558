"""RDMA devices as the kernel describes them: what there is, and which address to use. Reads sysfs
only; no verbs here."""

from .devices import Port, rdma_ports
from .gids import Gid, Kind, RankedGid, Scope, best_gid, parse_gid, rank_gids

__all__ = [
    "Gid",
    "Kind",
    "Port",
    "RankedGid",
    "Scope",
    "best_gid",
    "parse_gid",
    "rank_gids",
    "rdma_ports",
]
